// The address, the tables, the scripts that are loaded later, and the start.
"use strict";

// -- permalinks: every choice by its name
function hash(s) {
  const f = D.frameworks[s.framework],
    params = new URLSearchParams({ framework: f.name });
  if (s.release !== null) params.set("release", f.releases[s.release]);
  if (s.torch !== null) params.set("torch", D.torches[s.torch]);
  if (s.python !== null) params.set("python", D.pythons[s.python]);
  for (const axis of ["cuda", "gpu", "driver"]) if (s[axis] !== null) params.set(axis, s[axis]);
  if (s.tool !== "venv") params.set("tool", s.tool);
  return params.toString();
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
    release: known(D.frameworks[framework].releases, "release"),
    torch: known(D.torches, "torch"),
    python: known(D.pythons, "python"),
    cuda: among(cudas, "cuda"),
    gpu: among(Object.keys(D.gpus), "gpu"),
    driver: among(DRIVERS, "driver"),
    tool: among(Object.keys(TOOLS), "tool") || "venv",
  };
  return true;
}

// -- the grid
const grids = D.frameworks.map((f) => $("grid-" + f.name));
const tables = grids.map((grid) => grid.querySelector("table"));
const cells = tables.map((table) => [...table.tBodies[0].rows].map((row) => [...row.cells].slice(1)));
$("tabs").append(
  ...D.frameworks.map((f, number) =>
    el("button", { type: "button", id: "show-" + f.name, "data-framework": String(number) }, f.title),
  ),
);
$("tabs").addEventListener("click", (event) => {
  const number = event.target.dataset.framework;
  if (number !== undefined && +number !== state.framework) choose(switched(+number));
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
  const add = (src, next) => {
    const script = el("script", { src });
    script.onload = next;
    document.body.append(script);
  };
  add("search.js", () =>
    add("find.js", () => {
      draw();
      loaders.forEach((loader) => loader(window.ENVSMITH_FIND));
      add("grid.js", () => {});
    }),
  );
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
addEventListener("hashchange", () => {
  if (fromHash()) draw();
});
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
