// The selector, the answer, the grid and the search. The solver decided what is possible: data.js holds its outcomes.
(() => {
  "use strict";
  const D = window.ENVSMITH;
  const $ = (id) => document.getElementById(id);
  const PYTHONS = ["3.12", "3.11", "3.13", "3.10", "3.14", "3.9", "3.8"];
  const DRIVERS = ["580.65.06", "570.86.15", "550.54.14", "535.54.03", "525.60.13", "470.82.01"];
  const TOOLS = {
    venv: ["venv", "Locks every package, builds a virtual environment and runs the smoke test."],
    docker: ["Docker", "Locks every package, builds an image and runs the smoke test in it."],
    conda: ["Conda", "Writes a lock with a hash for every package. conda-lock installs it."],
    pip: ["pip", "Pins these releases only. Nothing is locked or tested."],
    uv: ["uv", "Pins these releases only. Nothing is locked or tested."],
  };
  const narrow = matchMedia("(max-width: 40rem)");

  function el(name, attributes, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
    node.append(...children.filter(Boolean));
    return node;
  }
  const link = (href, text) => el("a", { href }, text);
  const mark = (letter, stale) => el("span", { class: `m ${letter}${stale ? " s" : ""}`, "aria-hidden": "true" });
  const lower = (text) => text.toLowerCase().replace(/\b(cpu|gpu|ci)\b/g, (word) => word.toUpperCase());
  const words = (day) => new Date(day + "T12:00:00Z").toLocaleDateString("en-GB", { day: "numeric", month: "long", year: "numeric", timeZone: "UTC" });

  // -- the data -------------------------------------------------------------------------------------------------------
  const numbers = (text, base) => text.split(".").map((number) => (number ? parseInt(number, base) : null));
  const masks = D.frameworks.map((f) => { const rows = f.rows.map((row) => numbers(row, 16)); return f.row.map((row) => rows[row]); });
  const reasons = D.frameworks.map((f) => f.why.map((row) => numbers(row, 10)));
  const reasonOf = (f, r, t) => (reasons[f][r][t] === null ? undefined : D.reasons[reasons[f][r][t]]);
  const short = Object.fromEntries(D.frameworks.map((f, number) => [f.short, number]));
  const onCpu = D.ladder.indexOf("framework step(cpu)");
  // A row is [shared, rest, rung, 1 passed + 2 of the host + 4 stale, day, why it ended]. The name of the cell is what
  // it shares with the row before, and the rest.
  const byCell = new Map(), byPair = new Map();
  let id = "";
  for (const [shared, rest, rung, bits, day, why] of D.records) {
    id = id.slice(0, shared) + rest;
    const record = { id, rung, passed: bits & 1, host: bits & 2, stale: bits & 4, day: D.days[day], why: why === undefined ? "" : D.whys[why] };
    record.kind = record.passed ? (rung > onCpu ? "g" : rung === onCpu ? "c" : "p") : record.host ? "p" : "x";
    const keep = (map, key) => {
      const old = map.get(key);
      if (!old || record.passed > old.passed || (record.passed === old.passed && rung > old.rung)) map.set(key, record);
    };
    keep(byCell, id);
    const name = parse(id);
    if (name) keep(byPair, [name.framework, name.release, name.torch].join());
  }
  function parse(id) {
    const match = /^([a-z]+)([^-]+)-torch([^-]+)-(cpu|cu\d+)-py(\d)(\d+)/.exec(id);
    if (!match || !(match[1] in short)) return null;
    const framework = short[match[1]], cuda = match[4] === "cpu" ? "cpu" : match[4].slice(2, -1) + "." + match[4].slice(-1);
    const release = D.frameworks[framework].releases.indexOf(match[2]), torch = D.torches.indexOf(match[3]);
    const python = D.pythons.indexOf(match[5] + "." + match[6]);
    return Math.min(release, torch, python) < 0 ? null : { framework, release, torch, cuda, python };
  }
  function older(a, b) {
    const x = a.split(".").map(Number), y = b.split(".").map(Number);
    for (let i = 0; i < Math.max(x.length, y.length); i++) if ((x[i] || 0) !== (y[i] || 0)) return (x[i] || 0) < (y[i] || 0);
    return false;
  }
  const cudas = [...new Set(D.builds.map((b) => b[1]))].sort((a, b) => (a === "cpu" ? 1 : b === "cpu" ? -1 : older(a, b) ? 1 : -1));

  // -- what is chosen ---------------------------------------------------------------------------------------------------
  const EMPTY = { framework: 0, release: null, torch: null, cuda: null, python: null, gpu: null, driver: null };
  let state = { ...EMPTY, tool: "venv" };
  const open = new Set(); // axes whose older choices are shown

  // Every full choice that agrees with the state, but for what `free` says otherwise.
  function* options(free) {
    const s = { ...state, ...free }, arch = s.gpu ? D.archs.indexOf(D.gpus[s.gpu]) : -1;
    for (let r = 0; r < masks[s.framework].length; r++) {
      if (s.release !== null && s.release !== r) continue;
      for (let b = 0; b < D.builds.length; b++) {
        const [torch, cuda] = D.builds[b], mask = masks[s.framework][r][b];
        if (!mask || (s.torch !== null && s.torch !== torch) || (s.cuda !== null && s.cuda !== cuda)) continue;
        if ((s.gpu || s.driver) && cuda === "cpu") continue;
        if (arch >= 0 && !D.runs[b].includes(arch)) continue;
        if (s.driver && D.drivers[b] && older(s.driver, D.drivers[b])) continue;
        for (let p = 0; p < D.pythons.length; p++) if ((mask >> p) & 1 && (s.python === null || s.python === p)) yield { f: s.framework, r, b, p };
      }
    }
  }
  const possible = (free) => !options(free).next().done;
  // The solver's own order: newest release, torch that somebody ran with it, newest torch, default build, preferred Python.
  function rank({ f, r, b, p }) {
    const [torch, cuda, tag] = D.builds[b], run = byPair.get([f, r, torch].join());
    const tested = (D.frameworks[f].tested[r] || []).includes(torch) || (run && run.passed);
    return [r, cuda === "cpu" ? 1 : 0, tested ? 0 : 1, torch, tag ? 1 : 0, b, PYTHONS.indexOf(D.pythons[p])];
  }
  function best(free) {
    let first = null, lowest = null;
    for (const option of options(free)) {
      const order = rank(option), place = lowest ? order.findIndex((value, i) => value !== lowest[i]) : 0;
      if (!lowest || (place >= 0 && order[place] < lowest[place])) [first, lowest] = [option, order];
    }
    return first;
  }
  function axes() {
    const numbered = (values) => values.map((value, number) => [number, value]);
    const named = (values, label) => values.map((value) => [value, label(value)]);
    return [
      ["framework", "Framework", numbered(D.frameworks.map((f) => f.title))],
      ["release", D.frameworks[state.framework].title + " release", numbered(D.frameworks[state.framework].releases)],
      ["torch", "PyTorch", numbered(D.torches)],
      ["cuda", "CUDA", named(cudas, (c) => (c === "cpu" ? "CPU only" : c))],
      ["python", "Python", numbered(D.pythons)],
      ["gpu", "GPU", named(Object.keys(D.gpus), (g) => g.toUpperCase().replace("RTX", "RTX "))],
      ["driver", "NVIDIA driver", named(DRIVERS, (d) => d)],
    ];
  }
  const label = (axis, value) => axes().find((a) => a[0] === axis)[2].find((c) => c[0] === value)[1];

  // -- why not ------------------------------------------------------------------------------------------------------------
  function why(axis, value) {
    const s = { ...state, [axis]: value };
    if (s.release !== null && s.torch !== null) {
      const reason = reasonOf(s.framework, s.release, s.torch);
      if (reason) return reason;
    }
    const other = blocker(axis, value), name = other && axes().find((a) => a[0] === other)[1];
    if (!other) return "It does not work with your other choices.";
    const facts = detail(axis, other, s), choice = `${name} ${label(other, state[other])}${other === "gpu" ? ` (${D.gpus[state.gpu]})` : ""}`;
    return facts ? `${facts}You chose ${choice}.` : `It does not work with ${choice}, which you chose.`;
  }
  // The first other choice without which a choice is possible.
  function blocker(axis, value) {
    const chosen = ["driver", "gpu", "python", "cuda", "torch", "release"].filter((other) => other !== axis && state[other] !== null);
    return chosen.find((other) => possible({ [axis]: value, [other]: null }));
  }
  // A choice that is refused, with as few of the others given up as it takes, or null.
  function instead(axis, value) {
    const other = blocker(axis, value), alone = { ...EMPTY, framework: state.framework, [axis]: value };
    if (other) return { change: { [axis]: value, [other]: null }, words: `Choose it without ${label(other, state[other])}` };
    return possible(alone) ? { change: alone, words: "Choose only this" } : null;
  }
  function detail(axis, other, s) {
    if (axis === "driver" || other === "driver") {
      const build = best({ ...s, driver: null });
      if (build && D.drivers[build.b]) return `CUDA ${D.builds[build.b][1]} needs driver ${D.drivers[build.b]} or newer. `;
    }
    if (s.torch === null) return "";
    const name = `PyTorch ${D.torches[s.torch]}${s.cuda && s.cuda !== "cpu" ? ` for CUDA ${s.cuda}` : ""}`;
    const builds = D.builds.flatMap((b, number) => (b[0] === s.torch && (s.cuda === null || b[1] === s.cuda) ? [number] : []));
    if (axis === "gpu" || other === "gpu") {
      const archs = new Set(builds.flatMap((b) => D.runs[b].map((a) => D.archs[a])));
      return `${axis === "gpu" ? `${label("gpu", s.gpu)} is ${D.gpus[s.gpu]}. ` : ""}${name} runs on ${[...archs].join(", ") || "no GPU"}. `;
    }
    if (axis === "python" || other === "python") {
      const pythons = D.pythons.filter((_, p) => builds.some((b) => masks[s.framework].some((row) => (row[b] >> p) & 1)));
      return `${name} works here with Python ${pythons.join(", ")}. `;
    }
    return "";
  }
  // A sentence whose rules, in brackets, are links.
  const linked = (text) => text.split(/\[([\w.-]+)\]/).map((part, i) => (i % 2 ? el("span", {}, "(", link("#rule=" + part, part), ")") : part));

  // -- the tip: a reason beside what it is about ----------------------------------------------------------------------------
  const tip = $("reason");
  let pinned = false, timer = 0;
  function showTip(target, ...children) {
    clearTimeout(timer);
    tip.replaceChildren(...children.filter(Boolean));
    tip.hidden = false;
    const place = target.getBoundingClientRect(), size = tip.getBoundingClientRect(), width = document.documentElement.clientWidth;
    const below = place.bottom + 6 + size.height < innerHeight || place.top < size.height + 70;
    tip.style.left = Math.max(8, Math.min(place.left, width - size.width - 8)) + scrollX + "px";
    tip.style.top = (below ? place.bottom + 6 : place.top - size.height - 6) + scrollY + "px";
  }
  function hideTip(delay) {
    clearTimeout(timer);
    timer = setTimeout(() => { tip.hidden = true; pinned = false; }, delay || 0);
  }
  tip.addEventListener("mouseenter", () => clearTimeout(timer));
  tip.addEventListener("mouseleave", () => { if (!pinned) hideTip(250); });
  tip.addEventListener("focusin", () => clearTimeout(timer));

  // -- the selector -----------------------------------------------------------------------------------------------------
  const form = $("selector");
  function draw() {
    const focused = document.activeElement && document.activeElement.id;
    const option = best({});
    const picked = option ? { release: option.r, torch: D.builds[option.b][0], cuda: D.builds[option.b][1], python: option.p } : {};
    hideTip();
    form.replaceChildren(...axes().map((axis) => drawAxis(axis, picked)), el("button", { type: "button", id: "clear", hidden: !chosen() }, "Clear choices"));
    drawAnswer(option);
    drawGrid(option);
    if (focused && $(focused) && !$(focused).matches(":focus")) $(focused).focus({ preventScroll: true });
  }
  const chosen = () => Object.keys(EMPTY).some((axis) => axis !== "framework" && state[axis] !== null);
  function drawAxis([axis, title, choices], picked) {
    const chips = el("div", { class: "chips" }), values = axis === "framework" ? choices : [[null, "Any"], ...choices];
    let folded = 0;
    const shown = narrow.matches ? 3 : 7;
    for (const [value, text] of values) {
      const place = values.findIndex((v) => v[0] === value), checked = state[axis] === value;
      const auto = state[axis] === null && picked[axis] === value;
      if (place > shown && values.length > (narrow.matches ? 9 : 12) && !open.has(axis) && !checked && !auto) { folded++; continue; }
      chips.append(chip(axis, value, text, checked, auto));
    }
    if (folded) chips.append(el("button", { type: "button", class: "more", id: "more-" + axis, "data-axis": axis }, `${folded} more`));
    const auto = state[axis] === null && picked[axis] !== undefined ? `best match: ${label(axis, picked[axis])}` : "";
    return el("fieldset", { class: "axis" }, el("legend", {}, title, auto && el("span", { class: "auto" }, auto)), chips);
  }
  function chip(axis, value, text, checked, auto) {
    const free = axis === "framework" ? switched(value) : { [axis]: value };
    const can = checked || value === null || possible(free), id = `${axis}-${value === null ? "any" : value}`;
    const input = el("input", { type: "radio", name: axis, id, "aria-disabled": can ? null : "true", "aria-describedby": can ? null : "reason" });
    input.checked = checked;
    const node = el("label", { for: id, class: can ? (auto ? "auto" : value === null ? "any" : "") : "no" }, input, el("span", {}, text));
    if (can) {
      input.addEventListener("change", () => choose(free));
      return node;
    }
    const way = instead(axis, value), take = () => { choose(way.change); $(id).focus(); };
    const tell = () => {
      const button = el("button", { type: "button" }, way ? way.words : "");
      button.addEventListener("click", take);
      tip.classList.remove("passing");
      showTip(node, el("p", {}, ...linked(why(axis, value))), way ? el("p", {}, button) : "");
    };
    node.addEventListener("mouseenter", tell);
    node.addEventListener("mouseleave", () => hideTip(250));
    input.addEventListener("focus", tell);
    input.addEventListener("blur", () => hideTip(250));
    input.addEventListener("keydown", (event) => { if (event.key === "Enter" && way) { event.preventDefault(); take(); } });
    input.addEventListener("change", () => {
      input.checked = false;
      $(`${axis}-${state[axis] === null ? "any" : state[axis]}`).checked = true;
      tell();
    });
    return node;
  }
  // Another framework keeps what works with it: all other choices, else the machine, else nothing.
  function switched(framework) {
    const machine = { ...EMPTY, gpu: state.gpu, driver: state.driver };
    return [{ release: null }, machine, EMPTY].map((change) => ({ ...change, framework })).find((change) => possible(change));
  }
  form.addEventListener("click", (event) => {
    if (event.target.id === "clear") { choose({ ...EMPTY, framework: state.framework }); $("framework-" + state.framework).focus(); }
    if (event.target.dataset.axis) { open.add(event.target.dataset.axis); draw(); }
  });
  function choose(change) {
    state = { ...state, ...change };
    history.replaceState(null, "", "#" + hash(state));
    draw();
  }

  // -- permalinks: every choice by its name ---------------------------------------------------------------------------------
  function hash(s) {
    const f = D.frameworks[s.framework], params = new URLSearchParams({ framework: f.name });
    if (s.release !== null) params.set("release", f.releases[s.release]);
    if (s.torch !== null) params.set("torch", D.torches[s.torch]);
    if (s.python !== null) params.set("python", D.pythons[s.python]);
    for (const axis of ["cuda", "gpu", "driver"]) if (s[axis] !== null) params.set(axis, s[axis]);
    if (s.tool !== "venv") params.set("tool", s.tool);
    return params.toString();
  }
  // Return whether the address names a choice. What it does not know it leaves out.
  function fromHash() {
    const text = location.hash.slice(1), params = new URLSearchParams(text);
    const query = params.get("q"), rule = params.get("rule");
    if (query !== null || rule !== null) {
      loadSearch((search) => (rule === null ? search.find(query) : search.showRule(rule)));
      return false;
    }
    const cell = parse(text), known = (values, name) => { const place = values.indexOf(params.get(name)); return place < 0 ? null : place; };
    if (cell) { state = { ...state, ...EMPTY, ...cell }; return true; }
    const framework = D.frameworks.findIndex((f) => f.name === params.get("framework"));
    if (framework < 0) return false;
    const among = (values, name) => (values.includes(params.get(name)) ? params.get(name) : null);
    state = {
      framework, release: known(D.frameworks[framework].releases, "release"), torch: known(D.torches, "torch"), python: known(D.pythons, "python"),
      cuda: among(cudas, "cuda"), gpu: among(Object.keys(D.gpus), "gpu"), driver: among(DRIVERS, "driver"), tool: among(Object.keys(TOOLS), "tool") || "venv",
    };
    return true;
  }

  // -- the answer -----------------------------------------------------------------------------------------------------------
  function cellId({ f, r, b, p }) {
    const [torch, cuda] = D.builds[b], tag = cuda === "cpu" ? "cpu" : "cu" + cuda.replace(".", "");
    const release = D.frameworks[f].short + D.frameworks[f].releases[r];
    return `${release}-torch${D.torches[torch]}-${tag}-py${D.pythons[p].replace(".", "")}`;
  }
  function command(option, tool) {
    const f = D.frameworks[option.f], release = `${f.name}==${f.releases[option.r]}`, [number, cuda, tag] = D.builds[option.b];
    const values = { id: cellId(option), torch: D.torches[number], cuda, python: D.pythons[option.p], chosen: "--framework " + release };
    const fill = (text) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
    values.pins = `${tag ? `--torch-backend ${tag} ` : ""}torch==${values.torch} ${release}`;
    values.ask = fill(D.tools.ask);
    // pip does not know where a build lies that the default index does not have.
    return tool === "pip" && tag ? "# This build of torch is on PyTorch's own index. uv finds it:\n" + fill(D.tools.uv) : fill(D.tools[tool]);
  }
  function drawAnswer(option) {
    const card = $("answer");
    card.className = "card";
    if (!option) { refuse(card); return; }
    const id = cellId(option), f = D.frameworks[option.f], [torch, cuda] = D.builds[option.b], record = byCell.get(id);
    const tested = (f.tested[option.r] || []).includes(torch), kind = record ? record.kind : tested ? "i" : "o";
    const parts = [`PyTorch ${D.torches[torch]}`, cuda === "cpu" ? "CPU only" : `CUDA ${cuda}`, `Python ${D.pythons[option.p]}`];
    const title = `${f.title} ${f.releases[option.r]}`;
    const address = location.href.split("#")[0] + "#" + hash(state);
    card.replaceChildren(
      el("div", { class: "row" }, badge(kind, record, kind === "x" && "Failed when run"),
        el("button", { type: "button", class: "copy", "data-copy": address }, "Copy link")),
      el("h2", { class: "title" }, title, el("span", {}, parts.join(" · "))),
      el("p", { class: "id" }, el("a", { href: "#" + id, id: "permalink" }, id)),
      ...proof(record, kind, option),
      ...commands(option),
      ...requirements(option),
      ...warnings(option),
    );
    $("status").textContent = `${title}, ${parts.join(", ")}. ${D.kinds[kind]}.`;
    $("bar").replaceChildren(mark(kind, record && record.stale), el("span", {}, el("b", {}, title), parts[0]), el("span", { class: "go" }, "See command"));
  }
  const badge = (kind, record, text) => el("p", { class: "badge " + kind }, mark(kind, record && record.stale), text || D.kinds[kind]);
  function refuse(card) {
    const run = state.release !== null && state.torch !== null ? byPair.get([state.framework, state.release, state.torch].join()) : null;
    const f = D.frameworks[state.framework], title = state.release === null ? f.title : `${f.title} ${f.releases[state.release]}`;
    const parts = axes().slice(2).filter(([axis]) => state[axis] !== null).map(([axis, name]) => `${name} ${label(axis, state[axis])}`);
    const ways = [{}, { release: null }].map((wider) => best({ torch: null, cuda: null, python: null, ...wider })).filter(Boolean);
    card.replaceChildren(
      badge("x"),
      el("h2", { class: "title" }, title, el("span", {}, parts.join(" · "))),
      el("p", {}, ...linked(why("release", state.release))),
      ...(run ? [el("p", {}, "It was run. ", link(`cell/${run.id}.html`, "Record and log"))] : []),
      el("h3", {}, "Try instead"),
      ...ways.map((option) => el("p", { class: "id" }, link("#" + cellId(option), cellId(option)))),
    );
    $("status").textContent = "These choices do not work together.";
    $("bar").replaceChildren(mark("x"), el("span", {}, "Does not work together"), el("span", { class: "go" }, "See why"));
  }
  function proof(record, kind, option) {
    if (!record) {
      const run = byPair.get([option.f, option.r, D.builds[option.b][0]].join());
      const reason = kind === "i" ? `${D.frameworks[option.f].title}'s own CI runs these two releases.` : "No known conflict.";
      const near = run && run.id !== cellId(option);
      return [
        el("p", {}, reason + " envsmith has not run this combination yet."),
        near && el("p", { class: "note" }, "Nearest run: ", link("#" + run.id, run.id), `, ${lower(D.kinds[run.kind])}.`),
      ].filter(Boolean);
    }
    const steps = D.steps.map((step, number) => {
      const stopped = number === record.rung + 1 && !record.passed;
      const status = number <= record.rung ? "done" : stopped ? (record.host ? "lack" : "failed") : "open";
      const spoken = { done: "passed", failed: "failed", lack: "not possible on the test machine", open: "not run" }[status];
      return number > 1 || status !== "done" ? el("li", { class: status }, step, el("span", { class: "hidden" }, ": " + spoken)) : "";
    });
    const lack = record.host ? "The test machine could not run the next step. " : "", old = record.stale ? "The proof is old, so run it again. " : "";
    return [
      el("ol", { class: "ladder" }, ...steps.filter(Boolean)),
      el("p", {}, `Run on ${words(record.day)}. ${lack}${old}`, link(`cell/${record.id}.html`, "Record and log")),
      record.why && el("p", { class: "symptom" }, record.why),
    ].filter(Boolean);
  }
  function commands(option) {
    const tabs = el("div", { class: "tabs", role: "tablist", "aria-label": "Build it with" });
    for (const [tool, [name]] of Object.entries(TOOLS)) {
      const selected = tool === state.tool, keys = { "aria-selected": String(selected), tabindex: selected ? "0" : "-1" };
      tabs.append(el("button", { type: "button", role: "tab", id: "tool-" + tool, "aria-controls": "commands", "data-tool": tool, ...keys }, name));
    }
    // Lines do not break inside an option.
    const text = command(option, state.tool), parts = text.split(/(--\S+ [^-\s]\S*|\S+)/).map((part, i) => (i % 2 ? el("span", {}, part) : part));
    const pre = el("pre", { tabindex: "0", id: "command" }, el("code", {}, ...parts));
    const copy = el("button", { type: "button", class: "copy", id: "copy", "data-copy": text }, "Copy", el("span", { class: "hidden" }, " the command"));
    const panel = { id: "commands", role: "tabpanel", "aria-labelledby": "tool-" + state.tool };
    return [tabs, el("div", panel, el("div", { class: "command" }, pre, copy), el("p", { class: "note" }, TOOLS[state.tool][1]))];
  }
  $("answer").addEventListener("click", (event) => { if (event.target.dataset.tool) choose({ tool: event.target.dataset.tool }); });
  $("answer").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key], tools = Object.keys(TOOLS);
    if (!step || event.target.getAttribute("role") !== "tab") return;
    const tool = tools[(tools.indexOf(state.tool) + step + tools.length) % tools.length];
    choose({ tool });
    $("tool-" + tool).focus();
  });
  function requirements({ b }) {
    const gpus = Object.keys(D.gpus).filter((g) => D.runs[b].includes(D.archs.indexOf(D.gpus[g]))).map((g) => label("gpu", g));
    if (D.builds[b][1] === "cpu") return [el("p", { class: "needs" }, "Runs without a GPU.")];
    const driver = D.drivers[b] ? `Needs NVIDIA driver ${D.drivers[b]} or newer. ` : "";
    return [el("p", { class: "needs" }, `${driver}Runs on ${gpus.join(", ") || "none of the listed GPUs"}.`)];
  }
  function warnings({ f, r, b, p }) {
    if (!window.ENVSMITH_SEARCH) return [];
    const arch = state.gpu ? D.archs.indexOf(D.gpus[state.gpu]) : -1, here = { f, r, t: D.builds[b][0], c: b, p, g: arch };
    const hits = window.ENVSMITH_SEARCH.warnings.filter(([, , , , where]) => Object.entries(where).every(([axis, numbers]) => numbers.includes(here[axis])));
    if (!hits.length) return [];
    const item = ([rule, note, cause, fix]) => el("li", { class: note ? "note" : "warning" },
      el("b", {}, note ? "Note. " : "Warning. "), `${cause} ${fix} `, link("#rule=" + window.ENVSMITH_SEARCH.rules[rule][0], "Source"));
    // Notes are for few readers: the second and the following ones are folded.
    const [first, folded] = [hits.filter((hit) => !hit[1]), hits.filter((hit) => hit[1])];
    if (folded.length) first.push(folded.shift());
    const list = (entries) => el("ul", { class: "warnings" }, ...entries.map(item));
    const more = folded.length && el("details", {}, el("summary", {}, `${folded.length} more note${folded.length > 1 ? "s" : ""}`), list(folded));
    return [el("h3", {}, "Good to know"), list(first), more].filter(Boolean);
  }

  // -- the grid -------------------------------------------------------------------------------------------------------------
  const grids = D.frameworks.map((f) => $("grid-" + f.name));
  const tables = grids.map((grid) => grid.querySelector("table"));
  const cells = tables.map((table) => [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1)));
  $("tabs").append(...D.frameworks.map((f, number) => el("button", { type: "button", id: "show-" + f.name, "data-framework": String(number) }, f.title)));
  $("tabs").addEventListener("click", (event) => {
    const number = event.target.dataset.framework;
    if (number !== undefined && +number !== state.framework) choose(switched(+number));
  });
  function reveal(node) {
    node.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    node.focus({ preventScroll: true });
  }
  let ring = null;
  function drawGrid(option) {
    grids.forEach((grid, number) => { grid.hidden = number !== state.framework; });
    for (const button of $("tabs").children) button.setAttribute("aria-pressed", String(+button.dataset.framework === state.framework));
    if (ring) ring.classList.remove("now");
    ring = option ? cells[option.f][option.r][D.builds[option.b][0]] : null;
    if (ring) ring.classList.add("now");
  }

  // -- the search and the reasons of the grid: their code and data come after the page is shown ----------------------------
  const box = $("search"), loaders = [];
  if (narrow.matches) box.placeholder = "Search";
  function loadSearch(then) {
    if (window.ENVSMITH_FIND) { then(window.ENVSMITH_FIND); return; }
    loaders.push(then);
    if (loaders.length > 1) return;
    const page = {
      D, $, EMPTY, badge, best, byPair, cellId, cells, choose, cudas, el, hash, hideTip, label, link, linked, lower,
      possible, reasonOf, reveal, showTip, tables, tip, words, isPinned: () => pinned, pin: (on) => { pinned = on; }, chosen: () => state,
    };
    const add = (src, next) => { const script = el("script", { src }); script.onload = next; document.body.append(script); };
    add("search.js", () => add("find.js", () => {
      window.ENVSMITH_FIND = window.ENVSMITH_START_FIND(page);
      draw();
      loaders.forEach((loader) => loader(window.ENVSMITH_FIND));
      add("grid.js", () => window.ENVSMITH_START_GRID(page));
    }));
  }
  box.addEventListener("focus", () => loadSearch((search) => { if (box.value) search.find(box.value); }));
  box.addEventListener("input", () => loadSearch((search) => search.find(box.value)));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hideTip();
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "radio";
    if (event.key === "/" && !typing) { event.preventDefault(); box.focus(); box.select(); }
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (pinned && !event.target.closest("#reason, .grid")) hideTip();
    if (!link || (link.id !== "bar" && link.id !== "skip")) return;
    event.preventDefault();
    if (link.id === "bar") reveal($("answer"));
    else $("framework-" + state.framework).focus();
  });

  // -- start ------------------------------------------------------------------------------------------------------------------
  addEventListener("hashchange", () => { if (fromHash()) draw(); });
  fromHash();
  draw();
  if ("IntersectionObserver" in window) {
    const seen = { selector: false, answer: false };
    const watch = new IntersectionObserver((entries) => {
      for (const entry of entries) seen[entry.target.id] = entry.isIntersecting;
      $("bar").hidden = !seen.selector || seen.answer;
    });
    watch.observe(form);
    watch.observe($("answer"));
  }
  addEventListener("load", () => loadSearch(() => {}));
})();
