// Before the first paint: the theme that was chosen, else the system's.
(function () {
  var kept = null;
  try { kept = localStorage.getItem("envsmith-theme"); } catch (_) { /* a file without storage */ }
  var dark = kept ? kept === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  document.addEventListener("click", function (event) {
    var button = event.target.closest && event.target.closest("button[data-copy]");
    if (!button) return;
    var text = button.dataset.copy;
    var done = function () {
      var old = button.firstChild.data;
      button.firstChild.data = "copied";
      setTimeout(function () { button.firstChild.data = old; }, 1500);
    };
    if (navigator.clipboard && isSecureContext) navigator.clipboard.writeText(text).then(done, function () { fallback(text); done(); });
    else { fallback(text); done(); }
  });
  function fallback(text) {
    var area = document.createElement("textarea");
    area.value = text;
    document.body.appendChild(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
})();
