// The selector, the search and the grid. Everything that is possible was decided by the solver and stands in data.js; nothing is decided here.
(function () {
  "use strict";
  var D = window.ENVSMITH, form = document.getElementById("selector"), reason = document.getElementById("reason");
  var answer = document.getElementById("answer"), root = document.documentElement, theme = document.getElementById("theme");
  var PREFER = ["3.12", "3.11", "3.13", "3.10", "3.14", "3.9", "3.8"];
  var rows = D.frameworks.map(function (f) {
    return f.rows.map(function (r) { return r.split(".").map(function (x) { return x ? parseInt(x, 16) : 0; }); });
  });
  var NAMES = {};
  D.frameworks.forEach(function (f) { NAMES[f.short] = f.name; });
  // A row is [cell, rung, 1 passed + 2 of the host + 4 stale, day, why it ended]; framework, release and torch stand in the cell's name.
  D.records = D.records.map(function (x) {
    var name = /^([a-z]+)([^-]+)-torch([^-]+)-/.exec(x[0]) || [];
    return { id: x[0], f: NAMES[name[1]] || "", v: name[2] || "", t: name[3] || "", r: x[1], ok: x[2] & 1, host: x[2] & 2, stale: x[2] & 4, day: D.days[x[3]], why: x.length > 4 ? D.whys[x[4]] : "" };
  });
  var state = { framework: 0, release: null, torch: null, cuda: null, python: null, gpu: null, driver: null, tool: "envsmith" };

  function el(name, attributes, text) {
    var node = document.createElement(name);
    for (var key in attributes || {}) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  function older(a, b) {
    var x = a.split(".").map(Number), y = b.split(".").map(Number);
    for (var i = 0; i < Math.max(x.length, y.length); i++) if ((x[i] || 0) !== (y[i] || 0)) return (x[i] || 0) < (y[i] || 0);
    return false;
  }
  // Every full choice that agrees with what is chosen, but for the axes in `free`; the best first.
  function options(free) {
    var s = Object.assign({}, state, free), f = s.framework, found = [];
    var arch = s.gpu ? D.archs.indexOf(D.gpus[s.gpu] || s.gpu) : -1;
    for (var r = 0; r < rows[f].length; r++) {
      if (s.release !== null && s.release !== r) continue;
      for (var b = 0; b < D.builds.length; b++) {
        var build = D.builds[b], mask = rows[f][r][b];
        if (!mask || (s.torch !== null && s.torch !== build[0]) || (s.cuda !== null && s.cuda !== build[1])) continue;
        if ((arch >= 0 || s.driver) && build[1] === "cpu") continue;
        if (arch >= 0 && D.runs[b].indexOf(arch) < 0) continue;
        if (s.driver && D.drivers[b] && older(s.driver, D.drivers[b])) continue;
        for (var p = 0; p < D.pythons.length; p++) {
          if (!(mask >> p & 1) || (s.python !== null && s.python !== p)) continue;
          found.push({ f: f, r: r, b: b, p: p, s: score(f, r, b, p) });
        }
      }
    }
    return found.sort(function (x, y) { return compare(x.s, y.s); });
  }
  // The solver's own order: newest release, torch that somebody ran with it, newest torch, default build, preferred Python.
  function score(f, r, b, p) {
    var build = D.builds[b], tested = (D.frameworks[f].tested[r] || []).indexOf(build[0]) >= 0 || ran(f, r, build[0]);
    return [r, build[1] === "cpu" ? 1 : 0, tested ? 0 : 1, build[0], build[2] ? 1 : 0, b, PREFER.indexOf(D.pythons[p])];
  }
  function compare(x, y) {
    for (var i = 0; i < x.length; i++) if (x[i] !== y[i]) return x[i] - y[i];
    return 0;
  }
  function ran(f, r, t) {
    return D.records.some(function (c) { return c.ok && c.f === D.frameworks[f].name && c.v === D.frameworks[f].releases[r] && c.t === D.torches[t]; });
  }
  function axes() {
    var f = D.frameworks[state.framework], cudas = [];
    D.builds.forEach(function (b) { if (cudas.indexOf(b[1]) < 0) cudas.push(b[1]); });
    cudas.sort(function (a, b) { return a === "cpu" ? 1 : b === "cpu" ? -1 : older(a, b) ? 1 : -1; });
    return [
      ["framework", "Framework", D.frameworks.map(function (x, i) { return [i, x.title]; })],
      ["release", "Its release", f.releases.map(function (x, i) { return [i, x]; })],
      ["torch", "torch", D.torches.map(function (x, i) { return [i, x]; })],
      ["cuda", "CUDA", cudas.map(function (x) { return [x, x]; })],
      ["python", "Python", D.pythons.map(function (x, i) { return [i, x]; })],
      ["gpu", "GPU", ["v100", "t4", "a100", "rtx3090", "l40s", "rtx4090", "h100", "h200", "b200", "rtx5090"].filter(function (g) { return D.gpus[g]; }).map(function (g) { return [g, g.toUpperCase()]; })],
      ["driver", "Driver", ["470.82.01", "525.60.13", "535.54.03", "550.54.14", "570.86.15", "580.65.06"].map(function (d) { return [d, d]; })],
      ["tool", "Install with", [["envsmith", "envsmith"], ["uv", "uv"], ["pip", "pip"], ["conda", "Conda"], ["docker", "Docker"]]],
    ];
  }
  function why(axis, value) {
    var free = {}; free[axis] = value;
    var f = D.frameworks[axis === "framework" ? value : state.framework];
    var s = Object.assign({}, state, free);
    if (s.release !== null && s.torch !== null) {
      var n = f.why[s.release + "," + s.torch];
      if (n !== undefined) return D.reasons[n];
    }
    // The first other choice without which it would be possible is what stands in the way.
    var names = { release: "release " + f.releases[s.release], torch: "torch " + D.torches[s.torch], cuda: "CUDA " + s.cuda, python: "Python " + D.pythons[s.python], gpu: "the GPU " + s.gpu, driver: "driver " + s.driver };
    for (var other in names) {
      if (other === axis || state[other] === null) continue;
      var wider = Object.assign({}, free); wider[other] = null;
      if (options(wider).length) return detail(axis, value, other, s) + "not together with " + names[other] + ", which is chosen.";
    }
    return "not together with what is chosen.";
  }
  function detail(axis, value, other, s) {
    var t = axis === "torch" ? value : s.torch;
    if ((axis === "driver" || other === "driver")) {
      var wider = Object.assign({}, s, { driver: null }), best = options(wider)[0];
      if (best && D.drivers[best.b]) return "CUDA " + D.builds[best.b][1] + " needs driver " + D.drivers[best.b] + " or newer: ";
    }
    if ((axis === "gpu" || other === "gpu") && t !== null) {
      var archs = {};
      D.builds.forEach(function (b, i) { if (b[0] === t && (s.cuda === null || b[1] === s.cuda)) D.runs[i].forEach(function (a) { archs[D.archs[a]] = 1; }); });
      return "torch " + D.torches[t] + (s.cuda ? " for CUDA " + s.cuda : "") + " runs on " + (Object.keys(archs).join(" ") || "no GPU") + ": ";
    }
    if ((axis === "python" || other === "python") && t !== null) {
      var pythons = D.pythons.filter(function (_, p) { return D.builds.some(function (b, i) { return b[0] === t && rows[s.framework].some(function (r) { return r[i] >> p & 1; }); }); });
      return "torch " + D.torches[t] + " with this framework: Python " + pythons.join(", ") + ": ";
    }
    return "";
  }
  function draw() {
    var focused = document.activeElement && document.activeElement.id;
    form.textContent = "";
    axes().forEach(function (axis) {
      var set = el("fieldset"), box = el("div", { class: "choices" });
      set.appendChild(el("legend", {}, axis[1]));
      axis[2].forEach(function (choice) {
        var free = {}; free[axis[0]] = choice[0];
        if (axis[0] === "framework") free.release = null;
        var can = axis[0] === "tool" || options(free).length > 0;
        var id = axis[0] + "-" + choice[0], label = el("label", { class: can ? "" : "no", for: id });
        var input = el("input", { type: "radio", name: axis[0], id: id, value: choice[0] });
        input.checked = state[axis[0]] === choice[0];
        if (!can) { input.setAttribute("aria-disabled", "true"); input.setAttribute("aria-describedby", "reason"); }
        var tell = function () { reason.textContent = can ? "" : axis[1] + " " + choice[1] + ": " + why(axis[0], choice[0]); };
        label.addEventListener("mouseenter", tell);
        label.addEventListener("mouseleave", function () { reason.textContent = ""; });
        input.addEventListener("focus", tell);
        var choose = function () {
          if (!can) { tell(); input.checked = false; return; }
          state[axis[0]] = choice[0];
          if (axis[0] === "framework") state.release = null;
          draw();
        };
        input.addEventListener("change", choose);
        input.addEventListener("click", function () {
          // A second click takes a choice back; framework and tool are always chosen.
          if (can && input.dataset.was === "1" && axis[0] !== "framework" && axis[0] !== "tool") { state[axis[0]] = null; draw(); }
        });
        input.dataset.was = input.checked ? "1" : "0";
        label.appendChild(input);
        label.appendChild(el("span", {}, choice[1]));
        box.appendChild(label);
      });
      set.appendChild(box);
      form.appendChild(set);
    });
    show();
    if (focused) { var again = document.getElementById(focused); if (again) again.focus({ preventScroll: true }); }
  }
  function cellId(o) {
    var b = D.builds[o.b];
    return D.frameworks[o.f].short + D.frameworks[o.f].releases[o.r] + "-torch" + D.torches[b[0]] + "-" + (b[1] === "cpu" ? "cpu" : "cu" + b[1].replace(".", "")) + "-py" + D.pythons[o.p].replace(".", "");
  }
  function command(o, tool) {
    var f = D.frameworks[o.f], b = D.builds[o.b], values = { id: cellId(o), torch: D.torches[b[0]], cuda: b[1], python: D.pythons[o.p] };
    var fill = function (text) { return text.replace(/\{(\w+)\}/g, function (_, name) { return values[name]; }); };
    values.chosen = "--framework " + f.name + "==" + f.releases[o.r];
    values.pins = (b[2] ? "--torch-backend " + b[2] + " " : "") + "torch==" + values.torch + " " + f.name + "==" + f.releases[o.r];
    values.ask = fill(D.tools.ask);
    // pip does not know where a build lies that the default index does not have.
    return tool === "pip" && b[2] ? "# this build of torch is on PyTorch's own index; uv finds it:\n" + fill(D.tools.uv) : fill(D.tools[tool]);
  }
  function show() {
    answer.textContent = "";
    var best = options({})[0];
    if (!best) { answer.appendChild(el("p", {}, "Nothing fits all of it.")); return; }
    var id = cellId(best), text = command(best, state.tool), record = D.records.find(function (r) { return r.id === id; });
    var box = el("div", { class: "command" }), pre = el("pre", { tabindex: "0", id: "command" });
    pre.appendChild(el("code", {}, text));
    box.appendChild(pre);
    var copy = el("button", { type: "button", class: "copy", "data-copy": text }, "copy");
    box.appendChild(copy);
    var line = el("p"), link = el("a", { href: "#" + id, id: "permalink" }, id);
    line.appendChild(document.createTextNode("Cell "));
    line.appendChild(link);
    line.appendChild(document.createTextNode(record ? ": " + (record.ok ? "proved up to " : record.host ? "not shown beyond " : "failed after ") + D.ladder[record.r] + " on " + record.day + (record.stale ? " (stale)" : "") + ". " : ": solved, never run by us. "));
    if (record) line.appendChild(el("a", { href: "cell/" + id + ".html" }, "record and log"));
    answer.appendChild(line);
    answer.appendChild(box);
    if (record && !record.ok && record.why) answer.appendChild(el("p", { class: "symptom" }, record.why));
  }
  function fromHash() {
    var match = /^#([a-z]+)([^-]+)-torch([^-]+)-(cpu|cu\d+)-py(\d)(\d+)$/.exec(decodeURIComponent(location.hash));
    if (!match || !NAMES[match[1]]) return false;
    var name = NAMES[match[1]];
    var f = D.frameworks.findIndex(function (x) { return x.name === name; });
    var r = D.frameworks[f].releases.indexOf(match[2]), t = D.torches.indexOf(match[3]), p = D.pythons.indexOf(match[5] + "." + match[6]);
    var c = match[4] === "cpu" ? "cpu" : match[4].slice(2, -1) + "." + match[4].slice(-1);
    if (r < 0 || t < 0 || p < 0) return false;
    Object.assign(state, { framework: f, release: r, torch: t, cuda: c, python: p, gpu: null, driver: null });
    return true;
  }
  function grid() {
    var holder = document.getElementById("grid");
    D.frameworks.forEach(function (f, fi) {
      var details = el("details"), head = el("tr"), table = el("table", { class: "grid" }), body = el("tbody"), scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": f.title + " by torch" });
      if (fi === 0) details.setAttribute("open", "");
      details.appendChild(el("summary", {}, f.title));
      head.appendChild(el("th", { scope: "col" }, "release"));
      D.torches.forEach(function (t) { head.appendChild(el("th", { scope: "col" }, t)); });
      var thead = el("thead"); thead.appendChild(head); table.appendChild(thead);
      f.releases.forEach(function (v, r) {
        var row = el("tr"); row.appendChild(el("th", { scope: "row" }, v));
        D.torches.forEach(function (t, ti) { var td = el("td"); td.appendChild(mark(f, fi, v, r, t, ti)); row.appendChild(td); });
        body.appendChild(row);
      });
      table.appendChild(body); scroll.appendChild(table); details.appendChild(scroll); holder.appendChild(details);
    });
  }
  function mark(f, fi, v, r, t, ti) {
    var runs = D.records.filter(function (x) { return x.f === f.name && x.v === v && x.t === t; });
    runs.sort(function (a, b) { return (b.ok - a.ok) || (b.r - a.r); });
    var n = f.why[r + "," + ti], name = f.title + " " + v + " with torch " + t + ": ";
    if (runs.length) {
      var best = runs[0], rung = best.r + 1, kind = best.ok ? (rung >= 6 ? "s" + Math.min(rung, 8) : "part") : best.host ? "part" : "bad";
      var told = name + (best.ok ? "proved up to " : "ended after ") + D.ladder[best.r] + ", " + best.day + (best.stale ? ", stale" : "") + (best.why ? ": " + best.why : "");
      return el("a", { class: "mark " + kind + (best.stale ? " stale" : ""), href: "cell/" + best.id + ".html", title: told, "aria-label": told }, kind === "bad" ? "✕" : String(rung));
    }
    if (n !== undefined) return el("span", { class: "mark bad", role: "img", title: D.reasons[n], "aria-label": name + D.reasons[n] }, "✕");
    var ci = (f.tested[r] || []).indexOf(ti) >= 0, said = name + (ci ? "run by the framework's own CI" : "solvable, never run by us");
    return el("span", { class: "mark " + (ci ? "ci" : "open"), role: "img", title: said, "aria-label": said }, ci ? "ci" : "·");
  }
  function search() {
    var input = document.getElementById("search"), list = document.getElementById("found"), asked = false;
    function words(text) { return text.toLowerCase().match(/[a-z_][\w.]{2,}/g) || []; }
    function run() {
      list.textContent = "";
      var wanted = Array.from(new Set(words(input.value)));
      if (!wanted.length || !window.ENVSMITH_BAD) return;
      var weight = {}, all = window.ENVSMITH_BAD.map(function (b) { return new Set(words(b.symptom)); });
      wanted.forEach(function (w) { var n = all.filter(function (s) { return s.has(w); }).length; weight[w] = n ? Math.log(1 + all.length / n) : 0; });
      var total = wanted.reduce(function (a, w) { return a + weight[w]; }, 0);
      var seen = {};
      window.ENVSMITH_BAD.map(function (b, i) { return [wanted.reduce(function (a, w) { return a + (all[i].has(w) ? weight[w] : 0); }, 0), b]; })
        .filter(function (x) { return x[0] > 0 && x[0] >= total * 0.3; })
        .sort(function (a, b) { return b[0] - a[0]; })
        .filter(function (x) { if (seen[x[1].rule]) return false; seen[x[1].rule] = 1; return true; })
        .slice(0, 8).forEach(function (x) {
          var item = el("li"); item.appendChild(el("code", {}, x[1].symptom));
          item.appendChild(el("div", {}, x[1].components + (x[1].fix ? ". " + x[1].fix : "")));
          item.appendChild(el("div", {}, "envsmith explain " + x[1].rule));
          list.appendChild(item);
        });
      if (!list.firstChild) list.appendChild(el("li", {}, "No known-bad combination gives this text. envsmith doctor --from FILE reads whole logs."));
    }
    function load() {
      if (asked) return;
      asked = true;
      var script = el("script", { src: "bad.js" }); script.onload = run; document.body.appendChild(script);
    }
    input.addEventListener("focus", load);
    input.addEventListener("input", function () { load(); run(); });
  }
  function paint() { theme.textContent = root.dataset.theme === "dark" ? "light" : "dark"; theme.setAttribute("aria-pressed", String(root.dataset.theme === "dark")); theme.setAttribute("aria-label", "switch to the " + theme.textContent + " theme"); }
  theme.addEventListener("click", function () {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("envsmith-theme", root.dataset.theme); } catch (_) { /* a file without storage */ }
    paint();
  });
  addEventListener("hashchange", function () { if (fromHash()) draw(); });
  paint(); fromHash(); draw(); grid(); search();
})();
