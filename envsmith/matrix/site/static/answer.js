// The answer: the best environment for what is chosen, its proof and its commands, or why there is none.
"use strict";
const TOOLS = {
  venv: ["venv", "Locks every package, builds a virtual environment and runs the smoke test."],
  docker: ["Docker", "Locks every package, builds an image and runs the smoke test in it."],
  conda: ["Conda", "Writes a lock with a hash for every package. conda-lock installs it."],
  pip: ["pip", "Writes a lock with a hash for every package. pip installs it."],
  uv: ["uv", "Writes a lock with a hash for every package. uv installs it."],
};
// pip and uv compile a source in an environment without torch.
const toolsOf = ({ f }) =>
  Object.keys(TOOLS).filter((tool) => !(D.frameworks[f].compiled && ["pip", "uv"].includes(tool)));
const toolOf = (option) => (toolsOf(option).includes(state.tool) ? state.tool : "venv");
function cellId({ f, r, b, p }) {
  const [torch, cuda] = D.builds[b],
    tag = cuda === "cpu" ? "cpu" : "cu" + cuda.replace(".", "");
  const { short: name, axis, releases } = D.frameworks[f],
    release = axis === "release" ? `${name}${releases[r]}-` : "";
  const host = onArm(state) ? "-aarch64" : "";
  return `${release}torch${D.torches[torch]}-${tag}-py${D.pythons[p].replace(".", "")}${host}`;
}
function command(option, tool) {
  const f = D.frameworks[option.f],
    release = f.axis === "release" ? `${f.name}==${f.releases[option.r]}` : "",
    [number, cuda] = D.builds[option.b];
  const values = {
    id: cellId(option),
    torch: D.torches[number],
    cuda,
    python: D.pythons[option.p],
    chosen: "--framework " + (release || f.name),
    host: onArm(state) ? " --platform linux-aarch64" : "",
  };
  const fill = (text) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  values.ask = fill(D.tools.ask);
  return fill(D.tools[tool]);
}
function drawAnswer(option) {
  const card = $("answer");
  card.className = "card";
  if (!option) {
    refuse(card);
    return;
  }
  const id = cellId(option),
    f = D.frameworks[option.f],
    [torch, cuda] = D.builds[option.b],
    record = byCell.get(id);
  const tested = (f.tested[option.r] || []).includes(torch),
    kind = record ? record.kind : tested ? "i" : "o";
  const parts = [
    `PyTorch ${D.torches[torch]}`,
    cuda === "cpu" ? "CPU only" : `CUDA ${cuda}`,
    `Python ${D.pythons[option.p]}`,
  ];
  const title = f.axis === "release" ? `${f.title} ${f.releases[option.r]}` : parts.shift();
  const address = location.href.split("#")[0] + "#" + hash(state);
  card.replaceChildren(
    el(
      "div",
      { class: "row" },
      badge(kind, record, kind === "x" && "Failed when run"),
      el("button", { type: "button", class: "copy", "data-copy": address }, "Copy link"),
    ),
    el("h2", { class: "title" }, title, el("span", {}, parts.join(" · "))),
    el("p", { class: "id" }, el("a", { href: "#" + id, id: "permalink" }, id)),
    ...proof(record, kind, option),
    ...commands(option),
    ...requirements(option),
    ...warnings(option),
  );
  $("status").textContent = `${title}, ${parts.join(", ")}. ${D.kinds[kind]}.`;
  $("bar").replaceChildren(
    mark(kind, record && record.stale),
    el("span", {}, el("b", {}, title), parts[0]),
    el("span", { class: "go" }, "See command"),
  );
}
const badge = (kind, record, text) =>
  el("p", { class: "badge " + kind }, mark(kind, record && record.stale), text || D.kinds[kind]);
function refuse(card) {
  const run =
    rowOf(state) !== null && state.torch !== null
      ? byPair.get([state.framework, rowOf(state), state.torch].join())
      : null;
  const f = D.frameworks[state.framework],
    title = state.release === null ? f.title : `${f.title} ${f.releases[state.release]}`;
  const parts = axes()
    .filter(([axis]) => axis !== "framework" && axis !== "release" && state[axis] !== null)
    .map(([axis, name]) => `${name} ${label(axis, state[axis])}`);
  const ways = [{}, { release: null }]
    .map((wider) => best({ torch: null, cuda: null, python: null, ...wider }))
    .filter(Boolean);
  card.replaceChildren(
    badge("x"),
    el("h2", { class: "title" }, title, el("span", {}, parts.join(" · "))),
    el("p", {}, ...linked(why("release", state.release))),
    ...(run ? [el("p", {}, "It was run. ", link(`cell/${run.id}.html`, "Record and log"))] : []),
    ...(ways.length ? [el("h3", {}, "Try instead")] : []),
    ...ways.map((option) => el("p", { class: "id" }, link("#" + cellId(option), cellId(option)))),
  );
  $("status").textContent = "These choices do not work together.";
  $("bar").replaceChildren(mark("x"), el("span", {}, "Does not work together"), el("span", { class: "go" }, "See why"));
}
function proof(record, kind, option) {
  if (!record) {
    const run = byPair.get([option.f, option.r, D.builds[option.b][0]].join());
    const reason =
      kind === "i" ? `${D.frameworks[option.f].title}'s own CI runs these two releases.` : "No known conflict.";
    const near = run && run.id !== cellId(option),
      where = onArm(state) ? ", on x86-64" : "";
    return [
      el("p", {}, reason + " envsmith has not run this combination yet."),
      near &&
        el(
          "p",
          { class: "note" },
          "Nearest run: ",
          link(`cell/${run.id}.html`, run.id),
          `, ${lower(D.kinds[run.kind])}${where}.`,
        ),
    ].filter(Boolean);
  }
  const steps = D.steps.map((step, number) => {
    const stopped = number === record.rung + 1 && !record.passed;
    const status = number <= record.rung ? "done" : stopped ? (record.host ? "lack" : "failed") : "open";
    const spoken = { done: "passed", failed: "failed", lack: "not possible on the test machine", open: "not run" }[
      status
    ];
    return number > 1 || status !== "done"
      ? el("li", { class: status }, step, el("span", { class: "hidden" }, ": " + spoken))
      : "";
  });
  const lack = record.host ? "The test machine could not run the next step. " : "",
    old = record.stale ? "The proof is old, so run it again. " : "";
  return [
    el("ol", { class: "ladder" }, ...steps.filter(Boolean)),
    el("p", {}, `Run on ${words(record.day)}. ${lack}${old}`, link(`cell/${record.id}.html`, "Record and log")),
    record.why && el("p", { class: "symptom" }, record.why),
  ].filter(Boolean);
}
function commands(option) {
  const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Build it with" });
  const chosen = toolOf(option);
  for (const tool of toolsOf(option)) {
    const selected = tool === chosen,
      keys = { "aria-selected": String(selected), tabindex: selected ? "0" : "-1" };
    tabs.append(
      el(
        "button",
        { type: "button", role: "tab", id: "tool-" + tool, "aria-controls": "commands", "data-tool": tool, ...keys },
        TOOLS[tool][0],
      ),
    );
  }
  // Lines do not break inside an option.
  const text = command(option, chosen),
    parts = text.split(/(--\S+ [^-\s]\S*|\S+)/).map((part, i) => (i % 2 ? el("span", {}, part) : part));
  const pre = el("pre", { tabindex: "0", id: "command" }, el("code", {}, ...parts));
  const copy = el(
    "button",
    { type: "button", class: "copy", id: "copy", "data-copy": text },
    "Copy",
    el("span", { class: "hidden" }, " the command"),
  );
  const panel = { id: "commands", role: "tabpanel", "aria-labelledby": "tool-" + chosen };
  return [
    tabs,
    el("div", panel, el("div", { class: "command" }, pre, copy), el("p", { class: "note" }, TOOLS[chosen][1])),
  ];
}
$("answer").addEventListener("click", (event) => {
  if (event.target.dataset.tool) choose({ tool: event.target.dataset.tool });
});
$("answer").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key],
    tools = [...$("answer").querySelectorAll("[data-tool]")].map((tab) => tab.dataset.tool);
  if (!step || event.target.getAttribute("role") !== "tab") return;
  const tool = tools[(tools.indexOf(event.target.dataset.tool) + step + tools.length) % tools.length];
  choose({ tool });
  $("tool-" + tool).focus();
});
// Until when Python and the driver that is chosen get fixes.
function support(p) {
  const python = D.pythons[p],
    driver = state.driver && state.driver.split(".")[0];
  const say = (name, until) =>
    until && `${name} ${until < D.made.slice(0, 7) ? "has had no fixes since" : "gets fixes until"} ${month(until)}. `;
  return [say(`Python ${python}`, D.ends.python[python]), driver && say(`Driver ${driver}`, D.ends.driver[driver])];
}
const month = (text) => words(text + "-15").replace(/^\d+ /, "");
function requirements({ b, p }) {
  const gpus = Object.keys(D.gpus)
    .filter((g) => onArm(state) === D.armGpus.includes(g))
    .filter((g) => D.runs[b].includes(D.archs.indexOf(D.gpus[g])))
    .map((g) => label("gpu", g));
  const ends = support(p).filter(Boolean).join("");
  if (D.builds[b][1] === "cpu") return [el("p", { class: "needs" }, `Runs without a GPU. ${ends}`)];
  const driver = D.drivers[b] ? `Needs NVIDIA driver ${D.drivers[b]} or newer. ` : "";
  return [el("p", { class: "needs" }, `${driver}Runs on ${gpus.join(", ") || "none of the listed GPUs"}. ${ends}`)];
}
function warnings({ f, r, b, p }) {
  if (!window.ENVSMITH_SEARCH) return [];
  const arch = state.gpu ? D.archs.indexOf(D.gpus[state.gpu]) : -1,
    here = { f, r, t: D.builds[b][0], c: b, p, g: arch };
  const hits = window.ENVSMITH_SEARCH.warnings.filter(([, , , , where]) =>
    Object.entries(where).every(([axis, numbers]) => numbers.includes(here[axis])),
  );
  if (!hits.length) return [];
  const item = ([rule, note, cause, fix]) =>
    el(
      "li",
      { class: note ? "note" : "warning" },
      el("b", {}, note ? "Note. " : "Warning. "),
      `${cause} ${fix} `,
      link("#rule=" + window.ENVSMITH_SEARCH.rules[rule][0], "Source"),
    );
  // Notes are for few readers: the second and the following ones are folded.
  const [first, folded] = [hits.filter((hit) => !hit[1]), hits.filter((hit) => hit[1])];
  if (folded.length) first.push(folded.shift());
  const list = (entries) => el("ul", { class: "warnings" }, ...entries.map(item));
  const more =
    folded.length &&
    el("details", {}, el("summary", {}, `${folded.length} more note${folded.length > 1 ? "s" : ""}`), list(folded));
  return [el("h3", {}, "Good to know"), list(first), more].filter(Boolean);
}
