// The selector: an axis for each choice, whose impossible values say why.
"use strict";
const form = $("selector");
function draw() {
  const focused = document.activeElement && document.activeElement.id;
  const option = best({});
  const picked = option
    ? { release: option.r, torch: D.builds[option.b][0], cuda: D.builds[option.b][1], python: option.p }
    : {};
  hideTip();
  form.replaceChildren(
    pasteBox(),
    ...axes().map((axis) => drawAxis(axis, picked)),
    el("button", { type: "button", id: "clear", hidden: !chosen() }, "Clear choices"),
  );
  drawAnswer(option);
  drawGrid(option);
  if (focused && $(focused) && !$(focused).matches(":focus")) $(focused).focus({ preventScroll: true });
}
const chosen = () => Object.keys(EMPTY).some((axis) => axis !== "framework" && state[axis] !== null);
// A GPU that comes with an Arm host brings it, and takes it away.
function hosted(gpu) {
  const brings = D.armGpus.includes(gpu),
    leaves = D.armGpus.includes(state.gpu) || state.host === null;
  return { gpu, host: brings ? "arm" : leaves ? null : state.host };
}
function drawAxis([axis, title, choices], picked) {
  const chips = el("div", { class: "chips" }),
    values = axis === "framework" || axis === "host" ? choices : [[null, "Any"], ...choices];
  let folded = 0;
  const shown = narrow.matches ? 3 : 7;
  for (const [value, text] of values) {
    const place = values.findIndex((v) => v[0] === value),
      checked = state[axis] === value;
    const auto = state[axis] === null && picked[axis] === value;
    if (place > shown && values.length > (narrow.matches ? 9 : 12) && !unfolded.has(axis) && !checked && !auto) {
      folded++;
      continue;
    }
    chips.append(chip(axis, value, text, checked, auto));
  }
  if (folded)
    chips.append(
      el("button", { type: "button", class: "more", id: "more-" + axis, "data-axis": axis }, `${folded} more`),
    );
  const auto = state[axis] === null && picked[axis] !== undefined ? `best match: ${label(axis, picked[axis])}` : "";
  return el("fieldset", { class: "axis" }, el("legend", {}, title, auto && el("span", { class: "auto" }, auto)), chips);
}
function chip(axis, value, text, checked, auto) {
  const other = axis === "framework";
  const free = other ? {} : axis === "gpu" ? hosted(value) : { [axis]: value };
  const can = checked || other || value === null || possible(free),
    id = `${axis}-${value === null ? "any" : value}`;
  const input = el("input", {
    type: "radio",
    name: axis,
    id,
    "aria-disabled": can ? null : "true",
    "aria-describedby": can ? null : "reason",
  });
  input.checked = checked;
  const node = el(
    "label",
    { for: id, class: can ? (auto ? "auto" : value === null && axis !== "host" ? "any" : "") : "no" },
    input,
    el("span", {}, text),
  );
  if (can) {
    input.addEventListener("change", () => (other ? change(value) : choose(free)));
    return node;
  }
  const way = instead(axis, value),
    take = () => {
      choose(way.change);
      $(id).focus();
    };
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
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && way) {
      event.preventDefault();
      take();
    }
  });
  input.addEventListener("change", () => {
    input.checked = false;
    $(`${axis}-${state[axis] === null ? "any" : state[axis]}`).checked = true;
    tell();
  });
  return node;
}
// Another framework keeps what works with it: all other choices, else the machine, else nothing.
function switched(framework) {
  const machine = { ...EMPTY, host: state.host, gpu: state.gpu, driver: state.driver };
  return [{ release: null }, machine, EMPTY]
    .map((change) => ({ ...change, framework }))
    .find((change) => possible(change));
}
// What nvidia-smi prints says GPU and driver. Of the drivers the newest that is not newer is chosen.
const pasted = { open: false, text: "", said: "" };
function pasteBox() {
  const area = el("textarea", { id: "smi", rows: "3", spellcheck: "false", "aria-describedby": "smi-said" });
  area.value = pasted.text;
  area.addEventListener("input", () => {
    pasted.text = area.value;
    const found = readSmi(area.value);
    pasted.said = found.said;
    choose({ ...hosted(found.gpu), driver: found.driver });
    $("smi").setSelectionRange(area.selectionStart, area.selectionEnd);
  });
  const box = el(
    "details",
    { class: "paste", open: pasted.open },
    el("summary", {}, "Paste what nvidia-smi prints"),
    el("label", { class: "hidden", for: "smi" }, "Output of nvidia-smi"),
    area,
    el("p", { class: "note", id: "smi-said", role: "status" }, pasted.said),
  );
  box.addEventListener("toggle", () => (pasted.open = box.open));
  return box;
}
function readSmi(text) {
  const version = (/Driver Version:\s*([\d.]+)/i.exec(text) || /\b(\d{3}\.\d{2,3}(?:\.\d{2,3})?)\b/.exec(text) || [])[1];
  const names = new Set(),
    parts = text.toLowerCase().split(/[^a-z0-9]+/);
  parts.forEach((part, i) => names.add(part).add(part + (parts[i + 1] || "")));
  const gpu = Object.keys(D.gpus).find((name) => names.has(name)) || null;
  const driver = (version && DRIVERS.find((known) => !older(version, known))) || null;
  const read = [gpu && label("gpu", gpu), version && `driver ${version}`].filter(Boolean).join(", ");
  const old = version && !driver ? ` No build of PyTorch that is listed runs with driver ${version}.` : "";
  return { gpu, driver, said: text.trim() ? (read ? `Read: ${read}.${old}` : "Neither a GPU nor a driver stands in it.") : "" };
}
form.addEventListener("click", (event) => {
  if (event.target.id === "clear") {
    choose({ ...EMPTY, framework: state.framework });
    $("framework-" + state.framework).focus();
  }
  if (event.target.dataset.axis) {
    unfolded.add(event.target.dataset.axis);
    draw();
  }
});
function choose(change) {
  state = { ...state, ...change };
  history.replaceState(null, "", "#" + hash(state));
  withHost(draw);
}
