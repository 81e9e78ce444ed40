// The address, the tables, the scripts that are loaded later, and the start.
"use strict";

// -- permalinks: every choice by its name
function hash(s) {
  const f = D.frameworks[s.framework],
    params = new URLSearchParams({ framework: f.name });
  if (s.release !== null) params.set("release", f.releases[s.release]);
  if (s.torch !== null) params.set("torch", D.torches[s.torch]);
  if (s.python !== null) params.set("python", D.pythons[s.python]);
  for (const axis of ["cuda", "host", "gpu", "driver"]) if (s[axis] !== null) params.set(axis, s[axis]);
  if (s.tool !== "venv") params.set("tool", s.tool);
  return params.toString();
}
// The number of the framework that the address names, else of the one that is chosen.
function frameworkIn(text) {
  const cell = /^([a-z]+)[^-]*-/.exec(text),
    name = new URLSearchParams(text).get("framework");
  const number = cell && cell[1] in short ? short[cell[1]] : D.frameworks.findIndex((f) => f.name === name);
  return number < 0 ? state.framework : number;
}
// Return whether the address names a choice. What it does not know it leaves out.
function fromHash() {
  const text = location.hash.slice(1),
    params = new URLSearchParams(text);
  const query = params.get("q"),
    rule = params.get("rule");
  if (query !== null || rule !== null) {
    loadSearch((search) => (rule === null ? search.find(query) : search.showRule(rule)));
    return false;
  }
  const cell = parse(text),
    known = (values, name) => {
      const place = values.indexOf(params.get(name));
      return place < 0 ? null : place;
    };
  if (cell) {
    state = { ...state, ...EMPTY, ...cell };
    return true;
  }
  const framework = D.frameworks.findIndex((f) => f.name === params.get("framework"));
  if (framework < 0) return false;
  const among = (values, name) => (values.includes(params.get(name)) ? params.get(name) : null);
  state = {
    framework,
    release: D.frameworks[framework].axis === "release" ? known(D.frameworks[framework].releases, "release") : null,
    torch: known(D.torches, "torch"),
    python: known(D.pythons, "python"),
    cuda: among(cudas, "cuda"),
    host: among(["arm"], "host"),
    gpu: among(Object.keys(D.gpus), "gpu"),
    driver: among(DRIVERS, "driver"),
    tool: among(Object.keys(TOOLS), "tool") || "venv",
  };
  return true;
}

// -- the frameworks: the page comes with the first one, the script of each of the others brings its tables and its grid
const grids = [],
  tables = [],
  cells = [];
function addScript(src, then) {
  const script = el("script", { src });
  script.onload = then;
  document.body.append(script);
}
function takeAll(number) {
  const { grid } = D.parts[number];
  take(number);
  if (grid) $("grid").insertAdjacentHTML("beforeend", grid);
  grids[number] = $("grid-" + D.frameworks[number].name);
  grids[number].hidden = true;
  tables[number] = grids[number].querySelector("table");
  cells[number] = [...tables[number].tBodies[0].rows].map((row) => [...row.cells].slice(1));
}
// Call `then` when the framework has its tables.
function load(number, then) {
  if (taken(number)) then();
  else
    addScript(D.frameworks[number].name + ".js", () => {
      if (!taken(number)) takeAll(number);
      then();
    });
}
function loadEach([first, ...others], then) {
  if (first === undefined) then();
  else load(first, () => loadEach(others, then));
}
const change = (number) => load(number, () => choose(switched(number)));

// Call `then` when what is chosen has its tables: those of Arm hosts come with a script of their own.
function withHost(then) {
  if (!onArm(state) || armMasks.length) then();
  else loadArm(then);
}
function loadArm(then) {
  addScript("arm.js", () => {
    if (!armMasks.length) takeArm();
    then();
  });
}

// -- the grid
$("tabs").append(
  ...D.frameworks.map((f, number) =>
    el("button", { type: "button", id: "show-" + f.name, "data-framework": String(number) }, f.title),
  ),
);
$("tabs").addEventListener("click", (event) => {
  const number = event.target.dataset.framework;
  if (number !== undefined && +number !== state.framework) change(+number);
});
function reveal(node) {
  node.scrollIntoView({
    block: "center",
    behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth",
  });
  node.focus({ preventScroll: true });
}
let ring = null;
function drawGrid(option) {
  grids.forEach((grid, number) => {
    grid.hidden = number !== state.framework;
  });
  for (const button of $("tabs").children)
    button.setAttribute("aria-pressed", String(+button.dataset.framework === state.framework));
  if (ring) ring.classList.remove("now");
  ring = option ? cells[option.f][option.r][D.builds[option.b][0]] : null;
  if (ring) ring.classList.add("now");
}

// -- the search and the reasons of the grid: their code and data come after the page is shown
const box = $("search"),
  loaders = [];
if (narrow.matches) box.placeholder = "Search";
function loadSearch(then) {
  if (window.ENVSMITH_FIND) {
    then(window.ENVSMITH_FIND);
    return;
  }
  loaders.push(then);
  if (loaders.length > 1) return;
  const search = () =>
    addScript("find.js", () => {
      draw();
      loaders.forEach((loader) => loader(window.ENVSMITH_FIND));
      addScript("grid.js", () => {});
    });
  loadEach([...D.frameworks.keys()], () => addScript("search.js", search));
}
box.addEventListener("focus", () =>
  loadSearch((search) => {
    if (box.value) search.find(box.value);
  }),
);
box.addEventListener("input", () => loadSearch((search) => search.find(box.value)));
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") hideTip();
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName) && event.target.type !== "radio";
  if (event.key === "/" && !typing) {
    event.preventDefault();
    box.focus();
    box.select();
  }
});
document.addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (pinned && !event.target.closest("#reason, .grid")) hideTip();
  if (!link || (link.id !== "bar" && link.id !== "skip")) return;
  event.preventDefault();
  if (link.id === "bar") reveal($("answer"));
  else $("framework-" + state.framework).focus();
});

// -- start
const loadNamed = (then) => load(frameworkIn(location.hash.slice(1)), then);
addEventListener("hashchange", () =>
  loadNamed(() => {
    if (fromHash()) withHost(draw);
  }),
);
takeAll(0);
loadNamed(() => {
  fromHash();
  withHost(draw);
});
if ("IntersectionObserver" in window) {
  const seen = { selector: false, answer: false };
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.target.id] = entry.isIntersecting;
    $("bar").hidden = !seen.selector || seen.answer;
  });
  watch.observe(form);
  watch.observe($("answer"));
}
addEventListener("load", () => loadSearch(() => loadArm(draw)));
