// What can be chosen, what is chosen, and why not. The solver decided what is possible: data.js holds its outcomes.
"use strict";
const D = window.ENVSMITH;
const PYTHONS = ["3.12", "3.11", "3.13", "3.10", "3.14", "3.9", "3.8"];
const DRIVERS = D.hostDrivers;

// -- the data: what all frameworks share is there, the part of each framework is taken when its script was loaded
const numbers = (text, base) => text.split(".").map((number) => (number ? parseInt(number, base) : null));
const masks = [],
  reasons = [];
const taken = (f) => masks[f] !== undefined;
const reasonOf = (f, r, t) => (reasons[f][r][t] === null ? undefined : D.frameworks[f].reasons[reasons[f][r][t]]);
const short = Object.fromEntries(D.frameworks.map((f, number) => [f.short, number]));
// The masks of Arm hosts come with a script of their own, after the page is shown.
const armMasks = [];
const onArm = (s) => s.host === "arm";
const masksOf = (s) => (onArm(s) ? armMasks : masks)[s.framework];
function takeArm() {
  armMasks.push(
    ...window.ENVSMITH_ARM.frameworks.map(({ rows, row }) => row.map((number) => numbers(rows[number], 16))),
  );
}
const onCpu = D.ladder.indexOf("framework step(cpu)");
// A row is [shared, rest, rung, 1 passed + 2 of the host + 4 stale, day, why it ended]. The name of the cell is what
// it shares with the row before, and the rest.
const byCell = new Map(),
  byPair = new Map();
function take(number) {
  const f = Object.assign(D.frameworks[number], D.parts[number]),
    rows = f.rows.map((row) => numbers(row, 16));
  masks[number] = f.row.map((row) => rows[row]);
  reasons[number] = f.why.map((row) => numbers(row, 10));
  let id = "";
  for (const [shared, rest, ...run] of f.records) {
    id = id.slice(0, shared) + rest;
    takeRun(f, id, run);
  }
}
function takeRun(f, id, [rung, bits, day, why]) {
  const record = {
    id,
    rung,
    passed: bits & 1,
    host: bits & 2,
    stale: bits & 4,
    day: D.days[day],
    why: why === undefined ? "" : f.whys[why],
  };
  record.kind = record.passed ? (rung > onCpu ? "g" : rung === onCpu ? "c" : "p") : record.host ? "p" : "x";
  const keep = (map, key) => {
    const old = map.get(key);
    if (!old || record.passed > old.passed || (record.passed === old.passed && rung > old.rung)) map.set(key, record);
  };
  keep(byCell, id);
  const name = parse(id, f);
  if (name) keep(byPair, [name.framework, rowOf(name), name.torch].join());
}
// The row of a framework's table that is chosen: its release, or the Python of torch itself.
const rowOf = (s) => s[D.frameworks[s.framework].axis];
// What the name of a cell says, as choices: of its frameworks the first, or the one that is given.
function parse(id, only) {
  const match = /^((?:[a-z]+\d[^-]*-)*)torch([^-]+)-(cpu|cu\d+)-py(\d)(\d+)/.exec(id);
  if (!match) return null;
  const pairs = [...match[1].matchAll(/([a-z]+)(\d[^-]*)-/g)].filter(([, name]) => !only || name === only.short),
    [, name, version] = pairs[0] || [null, "torch", null];
  if (!(name in short)) return null;
  const framework = short[name],
    cuda = match[3] === "cpu" ? "cpu" : match[3].slice(2, -1) + "." + match[3].slice(-1);
  const release = version ? D.frameworks[framework].releases.indexOf(version) : null,
    torch = D.torches.indexOf(match[2]);
  const python = D.pythons.indexOf(match[4] + "." + match[5]);
  const host = /-aarch64/.test(id) ? "arm" : null;
  return Math.min(release, torch, python) < 0 ? null : { framework, release, torch, cuda, python, host };
}
function older(a, b) {
  const x = a.split(".").map(Number),
    y = b.split(".").map(Number);
  for (let i = 0; i < Math.max(x.length, y.length); i++)
    if ((x[i] || 0) !== (y[i] || 0)) return (x[i] || 0) < (y[i] || 0);
  return false;
}
const cudas = [...new Set(D.builds.map((b) => b[1]))].sort((a, b) =>
  a === "cpu" ? 1 : b === "cpu" ? -1 : older(a, b) ? 1 : -1,
);

// -- what is chosen
const EMPTY = {
  framework: 0, release: null, torch: null, cuda: null, python: null, host: null, gpu: null, driver: null,
};
let state = { ...EMPTY, tool: "venv" };
const unfolded = new Set(); // axes whose older choices are shown

// Whether the driver that is chosen is older than the GPU.
const unknownGpu = (s) => s.gpu && s.driver && older(s.driver, D.gpuDrivers[s.gpu]);
// Every full choice that agrees with the state, but for what `free` says otherwise.
function* options(free) {
  const s = { ...state, ...free },
    arch = s.gpu ? D.archs.indexOf(D.gpus[s.gpu]) : -1;
  const rows = masksOf(s);
  if ((!onArm(s) && D.armGpus.includes(s.gpu)) || unknownGpu(s)) return;
  for (let r = 0; r < rows.length; r++) {
    if (s.release !== null && s.release !== r) continue;
    for (let b = 0; b < D.builds.length; b++) {
      const [torch, cuda] = D.builds[b],
        mask = rows[r][b];
      if (!mask || (s.torch !== null && s.torch !== torch) || (s.cuda !== null && s.cuda !== cuda)) continue;
      if ((s.gpu || s.driver) && cuda === "cpu") continue;
      if (arch >= 0 && !D.runs[b].includes(arch)) continue;
      if (s.driver && D.drivers[b] && older(s.driver, D.drivers[b])) continue;
      for (let p = 0; p < D.pythons.length; p++)
        if ((mask >> p) & 1 && (s.python === null || s.python === p)) yield { f: s.framework, r, b, p };
    }
  }
}
// What is asked of an Arm host before its masks are there may be possible.
const possible = (free) => !masksOf({ ...state, ...free }) || !options(free).next().done;
// The solver's own answer for a GPU, a driver and a Python: a full choice, null where there is none. undefined where
// more is chosen.
function answered(s) {
  if (s.release !== null || s.torch !== null || s.cuda !== null) return undefined;
  const place = (values, value) => (value === null ? 0 : values.indexOf(value) + 1);
  const g = place(Object.keys(D.gpus), s.gpu),
    d = place(DRIVERS, s.driver),
    p = s.python === null ? 0 : s.python + 1;
  if (!onArm(s) && D.armGpus.includes(s.gpu)) return null;
  const f = onArm(s) ? window.ENVSMITH_ARM.frameworks[s.framework] : D.frameworks[s.framework],
    number = f.answers[(g * (DRIVERS.length + 1) + d) * (D.pythons.length + 1) + p];
  if (number < 0) return null;
  const [r, b, python] = f.cells[number];
  return { f: s.framework, r, b, p: python };
}
// Of what more is chosen the order is: newest release, a torch that was run, newest torch, default build, usual Python.
function rank({ f, r, b, p }) {
  const [torch, cuda, tag] = D.builds[b],
    run = byPair.get([f, r, torch].join());
  const tested = (D.frameworks[f].tested[r] || []).includes(torch) || (run && run.passed);
  const release = D.frameworks[f].axis === "release" ? r : 0;
  return [release, cuda === "cpu" ? 1 : 0, tested ? 0 : 1, torch, tag ? 1 : 0, b, PYTHONS.indexOf(D.pythons[p])];
}
function best(free) {
  const known = answered({ ...state, ...free });
  if (known !== undefined) return known;
  let first = null,
    lowest = null;
  for (const option of options(free)) {
    const order = rank(option),
      place = lowest ? order.findIndex((value, i) => value !== lowest[i]) : 0;
    if (!lowest || (place >= 0 && order[place] < lowest[place])) [first, lowest] = [option, order];
  }
  return first;
}
function axes() {
  const numbered = (values) => values.map((value, number) => [number, value]);
  const named = (values, label) => values.map((value) => [value, label(value)]);
  const hosts = [
    [null, "x86-64"],
    ["arm", "Arm"],
  ];
  const every = [
    ["framework", "Framework", numbered(D.frameworks.map((f) => f.title))],
    ["release", D.frameworks[state.framework].title + " release", numbered(D.frameworks[state.framework].releases)],
    ["torch", "PyTorch", numbered(D.torches)],
    ["cuda", "CUDA", named(cudas, (c) => (c === "cpu" ? "CPU only" : c))],
    ["python", "Python", numbered(D.pythons)],
    ["host", "Host", hosts],
    ["gpu", "GPU", named(Object.keys(D.gpus), (g) => g.toUpperCase().replace("RTX", "RTX "))],
    ["driver", "NVIDIA driver", named(DRIVERS, (d) => d)],
  ];
  return every.filter(([axis]) => axis !== "release" || D.frameworks[state.framework].axis === axis);
}
const label = (axis, value) =>
  axes()
    .find((a) => a[0] === axis)[2]
    .find((c) => c[0] === value)[1];

// -- why not
function why(axis, value) {
  const s = { ...state, [axis]: value };
  if (rowOf(s) !== null && s.torch !== null && !onArm(s)) {
    const reason = reasonOf(s.framework, rowOf(s), s.torch);
    if (reason) return reason;
  }
  const other = blocker(axis, value),
    name = other && axes().find((a) => a[0] === other)[1];
  if (!other) return "It does not work with your other choices.";
  const facts = detail(axis, other, s),
    choice = `${name} ${label(other, state[other])}${other === "gpu" ? ` (${D.gpus[state.gpu]})` : ""}`;
  return facts ? `${facts}You chose ${choice}.` : `It does not work with ${choice}, which you chose.`;
}
// The first other choice without which a choice is possible.
function blocker(axis, value) {
  const chosen = ["driver", "gpu", "host", "python", "cuda", "torch", "release"].filter(
    (other) => other !== axis && state[other] !== null,
  );
  return chosen.find((other) => possible({ [axis]: value, [other]: null }));
}
// A choice that is refused, with as few of the others given up as it takes, or null.
function instead(axis, value) {
  const other = blocker(axis, value),
    alone = { ...EMPTY, framework: state.framework, [axis]: value };
  if (other)
    return { change: { [axis]: value, [other]: null }, words: `Choose it without ${label(other, state[other])}` };
  return possible(alone) ? { change: alone, words: "Choose only this" } : null;
}
function detail(axis, other, s) {
  if (unknownGpu(s)) return `${label("gpu", s.gpu)} needs driver ${D.gpuDrivers[s.gpu]} or newer. `;
  if (axis === "driver" || other === "driver") {
    const build = best({ ...s, driver: null });
    if (build && D.drivers[build.b])
      return `CUDA ${D.builds[build.b][1]} needs driver ${D.drivers[build.b]} or newer. `;
  }
  if (s.torch === null || onArm(s)) return "";
  const name = `PyTorch ${D.torches[s.torch]}${s.cuda && s.cuda !== "cpu" ? ` for CUDA ${s.cuda}` : ""}`;
  const builds = D.builds.flatMap((b, number) =>
    b[0] === s.torch && (s.cuda === null || b[1] === s.cuda) ? [number] : [],
  );
  if (axis === "gpu" || other === "gpu") {
    const archs = new Set(builds.flatMap((b) => D.runs[b].map((a) => D.archs[a])));
    const gpu = axis === "gpu" ? `${label("gpu", s.gpu)} is ${D.gpus[s.gpu]}. ` : "";
    return `${gpu}${name} runs on ${[...archs].join(", ") || "no GPU"}. `;
  }
  if (axis === "python" || other === "python") {
    const pythons = D.pythons.filter((_, p) => builds.some((b) => masks[s.framework].some((row) => (row[b] >> p) & 1)));
    return `${name} works here with Python ${pythons.join(", ")}. `;
  }
  return "";
}
// A sentence whose rules, in brackets, are links.
const linked = (text) =>
  text.split(/\[([\w.-]+)\]/).map((part, i) => (i % 2 ? el("span", {}, "(", link("#rule=" + part, part), ")") : part));
