// What every part draws with: elements, words, and the tip that shows a reason beside what it is about.
// The scripts of the page share one scope. index.html lists them in the order in which they need each other.
"use strict";
const $ = (id) => document.getElementById(id);
const narrow = matchMedia("(max-width: 40rem)");

function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {}))
    if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  node.append(...children.filter(Boolean));
  return node;
}
const link = (href, text) => el("a", { href }, text);
const mark = (letter, stale) => el("span", { class: `m ${letter}${stale ? " s" : ""}`, "aria-hidden": "true" });
const lower = (text) => text.toLowerCase().replace(/\b(cpu|gpu|ci)\b/g, (word) => word.toUpperCase());
const words = (day) =>
  new Date(day + "T12:00:00Z").toLocaleDateString("en-GB", {
    day: "numeric",
    month: "long",
    year: "numeric",
    timeZone: "UTC",
  });

// -- the tip: a reason beside what it is about
const tip = $("reason");
let pinned = false,
  timer = 0;
function showTip(target, ...children) {
  clearTimeout(timer);
  tip.replaceChildren(...children.filter(Boolean));
  tip.hidden = false;
  const place = target.getBoundingClientRect(),
    size = tip.getBoundingClientRect(),
    width = document.documentElement.clientWidth;
  const below = place.bottom + 6 + size.height < innerHeight || place.top < size.height + 70;
  tip.style.left = Math.max(8, Math.min(place.left, width - size.width - 8)) + scrollX + "px";
  tip.style.top = (below ? place.bottom + 6 : place.top - size.height - 6) + scrollY + "px";
}
function hideTip(delay) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    tip.hidden = true;
    pinned = false;
  }, delay || 0);
}
tip.addEventListener("mouseenter", () => clearTimeout(timer));
tip.addEventListener("mouseleave", () => {
  if (!pinned) hideTip(250);
});
tip.addEventListener("focusin", () => clearTimeout(timer));
