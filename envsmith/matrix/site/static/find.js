// The search: releases, errors and rules from one box. Loaded with search.js after the page is shown.
window.ENVSMITH_FIND = (() => {
  "use strict";
  const results = $("results");
  const tokens = (text) => [...new Set(text.toLowerCase().match(/[a-z_][\w.-]+\w|\d[\w.]*/g) || [])];
  // Texts with the most, and the rarest, words of the query come first. One word of several says nothing.
  function search(query, texts, share) {
    const sets = texts.map((text) => new Set(tokens(text))),
      weight = new Map();
    for (const word of query) {
      const count = sets.filter((set) => set.has(word)).length;
      weight.set(word, count ? Math.log(1 + sets.length / count) : 0);
    }
    const total = query.reduce((sum, word) => sum + weight.get(word), 0);
    const hits = sets
      .map((set, number) => [query.filter((word) => set.has(word)), number])
      .filter(([shared]) => shared.length >= Math.min(2, query.length))
      .map(([shared, number]) => [shared.reduce((sum, word) => sum + weight.get(word), 0), number])
      .filter(([score]) => score >= total * share)
      .sort((a, b) => b[0] - a[0]);
    return hits.filter(([score]) => score >= hits[0][0] / 2).map(([, number]) => number);
  }
  // "deepspeed 0.16 torch 2.5 h100" as choices: each word that names an axis, with the newest release that begins so.
  // Of a release that is not here the series is taken, and told in unlisted.
  function choicesIn(text, unlisted) {
    const found = {},
      aliases = { pytorch: "torch", py: "python", "colossal-ai": "colossalai", megatron: "megatron-core" };
    for (const [, word, version] of text
      .toLowerCase()
      .matchAll(/([a-z][a-z0-9-]*?)(?:[\s=<>~v-]*(\d[\d.]*))?(?=$|[\s,;])/g)) {
      const name = aliases[word] || word,
        framework = D.frameworks.findIndex((f) => f.name === name || f.short === name);
      const pick = (values) => {
        const parts = (version || "").split(".").filter(Boolean);
        for (let kept = parts.length; kept >= Math.min(2, parts.length); kept--) {
          const place = values.findIndex((value) => `${value}.`.startsWith(parts.slice(0, kept).join(".") + "."));
          if (place < 0) continue;
          if (kept < parts.length) unlisted.push(`${word} ${version}`);
          return place;
        }
        return null;
      };
      const gpu = (name + (version || "")).replace(/[\s-]/g, "");
      if (name === "torch" && version) found.torch = pick(D.torches);
      else if (framework >= 0) {
        found.framework = framework;
        if (version) found.release = pick(D.frameworks[framework].releases);
      }
      else if (name === "python" && version) found.python = pick(D.pythons);
      else if (name === "cuda" && version) {
        const place = pick(cudas);
        found.cuda = place === null ? null : cudas[place];
      } else if (gpu in D.gpus) found.gpu = gpu;
      else if (name in D.gpus) found.gpu = name;
    }
    return Object.keys(found).length && Object.values(found).every((value) => value !== null) ? found : null;
  }
  function releaseItems(text) {
    const unlisted = [],
      found = choicesIn(text, unlisted),
      items = [];
    if (!found) return items;
    const base = { ...EMPTY, tool: state.tool, framework: state.framework, ...found },
      option = best(base);
    const name = (s) => {
      const f = D.frameworks[s.framework],
        first = s.release === null ? f.title : `${f.title} ${f.releases[s.release]}`;
      const versions = [
        s.torch !== null && `PyTorch ${D.torches[s.torch]}`,
        s.cuda && `CUDA ${s.cuda}`,
        s.python !== null && `Python ${D.pythons[s.python]}`,
      ];
      return [first, ...versions, s.gpu && label("gpu", s.gpu)].filter(Boolean).join(", ");
    };
    items.push(
      item(
        "#" + hash(base),
        el("b", {}, name(base)),
        unlisted.length ? `Not on this page: ${unlisted.join(", ")}. This is the newest of its series.` : "",
        option ? `Best match: ${cellId(option)}` : "These do not work together. See why.",
      ),
    );
    if (found.framework !== undefined && found.release === undefined && found.torch === undefined) {
      const { axis, releases } = D.frameworks[found.framework];
      for (const row of releases.slice(0, 4).keys()) {
        const choice = { ...base, [axis]: row };
        items.push(item("#" + hash(choice), el("b", {}, name(choice))));
      }
    }
    return items;
  }
  const item = (href, ...children) =>
    el(
      "li",
      {},
      el(
        "a",
        { href },
        ...children.filter(Boolean).map((child) => (typeof child === "string" ? el("span", {}, child) : child)),
      ),
    );
  function find(text) {
    if (box.value !== text) box.value = text;
    const { rules, errors, stacks } = window.ENVSMITH_SEARCH,
      query = tokens(text),
      once = new Set();
    if (!query.length) {
      results.hidden = true;
      return;
    }
    const errorItems = search(
      query,
      errors.map((e) => e[2]),
      0.3,
    )
      .filter((number) => {
        const key = errors[number][1] < 0 ? errors[number][2] : errors[number][1];
        return !once.has(key) && once.add(key);
      })
      .slice(0, 6)
      .map((number) => {
        const [components, rule, symptom] = errors[number];
        const [href, fix] = rule < 0 ? [`cell/${components}.html`, ""] : ["#rule=" + rules[rule][0], rules[rule][2]];
        return item(href, el("code", {}, symptom), `${components}. ${fix}`);
      });
    const ruleItems = search(
      query,
      rules.map((rule) => `${rule[0]} ${rule[0].replaceAll("-", " ")} ${rule[1]} ${rule[2]}`),
      0.5,
    )
      .slice(0, 6)
      .map((number) => item("#rule=" + rules[number][0], el("b", {}, rules[number][0]), rules[number][1]));
    const stackItems = search(
      query,
      stacks.map((stack) => stack.join(" ")),
      0.5,
    ).map((number) => {
      const [stack, title, members] = stacks[number];
      return item("#stacks-title", el("b", {}, title), members, el("code", {}, "envsmith build --stack " + stack));
    });
    const groups = [
      ["Releases", releaseItems(text)],
      ["Stacks", stackItems],
      ["Errors", errorItems],
      ["Rules", ruleItems],
    ].filter(([, items]) => items.length);
    results.replaceChildren(...groups.flatMap(([title, items]) => [el("h2", {}, title), el("ul", {}, ...items)]));
    if (!groups.length)
      results.append(
        el(
          "p",
          {},
          "Nothing here matches. Run ",
          el("code", {}, "envsmith doctor --from FILE"),
          " to read a whole log.",
        ),
      );
    results.hidden = false;
  }
  function showRule(id) {
    const { rules, errors } = window.ENVSMITH_SEARCH,
      number = rules.findIndex((rule) => rule[0] === id),
      rule = rules[number];
    const symptoms = [...new Set(errors.filter((e) => e[1] === number && number >= 0).map((e) => e[2]))].slice(0, 4);
    const lines = rule
      ? [el("p", {}, rule[1]), el("p", {}, el("b", {}, rule[2]))]
      : [el("p", {}, "This rule comes from the metadata of the packages.")];
    results.replaceChildren(
      el("h2", {}, "Rule"),
      el("h3", {}, id),
      ...lines,
      ...symptoms.map((text) => el("pre", { tabindex: "0" }, text)),
      el("p", {}, "All of it in a terminal: ", el("code", {}, "envsmith explain " + id)),
      ...(rule ? rule[3] : []).map((source) => el("p", {}, el("a", { href: source, rel: "noreferrer" }, source))),
    );
    results.hidden = false;
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      if (results.contains(event.target)) box.focus();
      results.hidden = true;
    }
    const stops = [box, ...results.querySelectorAll("a")],
      place = stops.indexOf(event.target),
      step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (place < 0 || !step || results.hidden || !stops[place + step]) return;
    event.preventDefault();
    stops[place + step].focus();
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (link ? !results.contains(link) || link.hash.startsWith("#rule=") : event.target.closest("search")) return;
    results.hidden = true;
    if (link) box.value = "";
    if (link && link.hash) setTimeout(() => reveal($("answer")));
  });
  return { find, showRule };
})();
