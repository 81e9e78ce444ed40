// The reasons of the grid: on pointing, on a tap, with the keyboard. Loaded after the page is shown.
(() => {
  "use strict";
  const rowNames = { release: (f) => D.frameworks[f].title, python: () => "Python" };
  const pairOf = (f, r, t) =>
    `${rowNames[D.frameworks[f].axis](f)} ${D.frameworks[f].releases[r]} with PyTorch ${D.torches[t]}`;
  const choiceOf = (f, r, t) => ({ ...EMPTY, framework: f, [D.frameworks[f].axis]: r, torch: t });
  // What is known of a pair, in words.
  function spoken(f, r, t, kind) {
    const run = byPair.get([f, r, t].join());
    if (run && (run.kind !== "p" || !reasonOf(f, r, t))) {
      const day = ` on ${words(run.day)}${run.stale ? " (old)" : ""}`,
        reached = lower(D.steps[run.rung]);
      if (run.passed)
        return `${D.steps[run.rung]}: passed${day}.${run.rung < D.steps.length - 1 ? " Not run on a GPU yet." : ""}`;
      const end = run.host
        ? `Stopped after "${reached}"${day}: the test machine could not run the next step.`
        : `Failed${day} after "${reached}".`;
      return `${end} ${run.why}`.trim();
    }
    if (reasonOf(f, r, t)) return reasonOf(f, r, t);
    return kind === "i"
      ? `${D.frameworks[f].title}'s own CI runs this pair. envsmith has not run it yet.`
      : "Not run yet. No known conflict.";
  }
  const kindAt = (cell) => Object.keys(D.kinds).find((kind) => cell.classList.contains(kind)) || "o";
  const spokenAt = (f, r, t, cell) => `${pairOf(f, r, t)}: ${D.kinds[kindAt(cell)]}. ${spoken(f, r, t, kindAt(cell))}`;
  function about(f, r, t, cell) {
    const run = byPair.get([f, r, t].join()),
      kind = kindAt(cell),
      can = possible(choiceOf(f, r, t));
    const use = el("button", { type: "button" }, "Show command");
    use.addEventListener("click", () => pick(f, r, t));
    const links = el("p", { class: "links" }, can && use, run && link(`cell/${run.id}.html`, "Record and log"));
    return [
      badge(kind, run),
      el("b", {}, pairOf(f, r, t)),
      el("p", {}, ...linked(spoken(f, r, t, kind))),
      (can || run) && links,
    ];
  }
  function pick(f, r, t) {
    if (!possible(choiceOf(f, r, t))) return;
    choose({ ...choiceOf(f, r, t), tool: state.tool });
    reveal($("answer"));
  }
  tables.forEach((table, f) => {
    table.setAttribute("role", "grid");
    table.setAttribute("aria-labelledby", "name-" + D.frameworks[f].name);
    cells[f].forEach((row, r) =>
      row.forEach((cell, t) => {
        cell.tabIndex = r || t ? -1 : 0;
        cell.setAttribute("aria-label", spokenAt(f, r, t, cell));
      }),
    );
    const at = (event) => {
      const cell = event.target.closest("td");
      return cell && [cell, cell.parentNode.rowIndex - 1, cell.cellIndex - 1];
    };
    // Pointing shows the reason in passing. A click, a tap or the keyboard pins it, with its links.
    const tell = (event, pin) => {
      const place = at(event);
      if (!place || (pinned && !pin)) return;
      showTip(place[0], ...about(f, place[1], place[2], place[0]));
      pinned = pin;
      tip.classList.toggle("passing", !pin);
    };
    table.addEventListener("mouseover", (event) => tell(event, false));
    table.addEventListener("focusin", (event) => tell(event, true));
    table.addEventListener("click", (event) => tell(event, true));
    table.addEventListener("mouseout", () => {
      if (!pinned) hideTip();
    });
    table.addEventListener("focusout", () => hideTip(150));
    table.addEventListener("keydown", (event) => {
      const place = at(event),
        move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!place) return;
      const [cell, r, t] = place;
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        pick(f, r, t);
      }
      const next = move && cells[f][r + move[0]] && cells[f][r + move[0]][t + move[1]];
      if (!next) return;
      event.preventDefault();
      cell.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    });
  });
})();
