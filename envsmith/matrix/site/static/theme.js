// Before the first paint: the theme that was chosen, else the system's. Then the buttons that every page has.
(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let stored = null;
  try {
    stored = localStorage.getItem("envsmith-theme");
  } catch {
    /* a file without storage */
  }
  const set = (name) => {
    root.dataset.theme = name;
    const button = document.getElementById("theme"),
      next = name === "dark" ? "light" : "dark";
    if (button) {
      button.textContent = next === "dark" ? "Dark" : "Light";
      button.setAttribute("aria-label", `Switch to the ${next} theme`);
    }
  };
  set(stored || (dark.matches ? "dark" : "light"));
  addEventListener("DOMContentLoaded", () => set(root.dataset.theme));
  document.addEventListener("click", (event) => {
    if (event.target.closest("#theme")) {
      set(root.dataset.theme === "dark" ? "light" : "dark");
      try {
        localStorage.setItem("envsmith-theme", root.dataset.theme);
      } catch {
        /* a file without storage */
      }
    }
    const button = event.target.closest("button[data-copy]");
    if (!button) return;
    const label = button.firstChild,
      text = label.data;
    const confirm = () => {
      label.data = "Copied";
      setTimeout(() => {
        label.data = text;
      }, 1500);
    };
    const copying =
      navigator.clipboard && isSecureContext ? navigator.clipboard.writeText(button.dataset.copy) : Promise.reject();
    copying.catch(() => select(button.dataset.copy)).then(confirm);
  });
  const select = (text) => {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  };
})();
