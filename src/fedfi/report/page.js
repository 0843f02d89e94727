(() => {
  const read = id => JSON.parse(document.getElementById(id).textContent);
  const root = document.documentElement, onDark = read("dark");
  const theme = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  let figures = read("figures");

  const isDark = () => theme.matches && !root.classList.contains("paper");
  const colour = name => getComputedStyle(root).getPropertyValue(name).trim();
  const tinted = value => {  // the colours of a figure, as the page's theme has them; the rest as it is
    if (typeof value === "string") return onDark[value.slice(0, 7)] ? onDark[value.slice(0, 7)] + value.slice(7) : value;
    if (Array.isArray(value)) return value.length > 2 && typeof value[0] === "number" ? value : value.map(tinted);
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, tinted(v)]));
    return value;
  };
  const axis = own => ({
    gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), linecolor: colour("--rule"),
    automargin: true, ...own, title: { ...(own || {}).title, font: { size: 12 }, standoff: 8 },
  });
  const layout = own => ({
    ...own,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    title: undefined,  // the caption says it, where no chart lies below and long ones wrap
    margin: { l: 48, r: 16, t: 16, b: 44 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 11 }, itemwidth: 30 },
    dragmode: coarse ? false : "zoom",  // a finger scrolls the page
    shapes: (own.shapes || []).map(shape => ({ ...shape, line: { width: 1, ...shape.line, color: colour("--soft") } })),
    xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
  });
  const drawn = (figure, more) => [isDark() ? tinted(figure.data) : figure.data, { ...layout(figure.layout), ...more }];
  const draw = more => document.querySelectorAll("[data-figure]").forEach(place => {
    const [data, own] = drawn(figures[Number(place.dataset.figure)], more);
    Plotly.react(place, data, own, { responsive: true, displayModeBar: false });
  });
  draw();
  root.dataset.drawn = "";
  theme.addEventListener("change", () => draw());

  // on paper: light, everything unfolded, charts as wide as their column
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach(part => { part.open = true; });
    root.classList.add("paper");
    draw({ width: 326, height: 260 });
  });
  window.addEventListener("afterprint", () => {
    folded.forEach(part => { part.open = false; });
    root.classList.remove("paper");
    draw({ width: undefined, height: undefined, autosize: true });
  });

  const name = figure => figure.layout.title.text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const cell = value => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@]/.test(value) ? "'" + value : String(value);  // a spreadsheet would compute it
    return /[",\n\r]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  const rows = figure => {
    const along = figure.layout.xaxis.title.text || "x", up = figure.layout.yaxis.title.text || "value";
    const [first] = figure.data;
    if (first.type === "heatmap")
      return [[along, up, "value"], ...first.y.flatMap((y, j) => first.x.map((x, i) => [x, y, first.z[j][i]]))];
    if (first.type === "box")
      return [["series", "name", up], ...figure.data.flatMap(t => t.y.map((y, i) => [t.name, t.text[i], y]))];
    return [["series", along, up], ...figure.data.flatMap(t => t.x.map((x, i) => [t.name, x, t.y[i]]))];
  };
  const save = (file, blob) => {
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: file });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  document.addEventListener("click", event => {
    const button = event.target.closest("button[data-as]");
    if (!button) return;
    const figure = figures[Number(button.dataset.of)], kind = button.dataset.as, file = name(figure);
    if (kind === "csv") {
      const text = rows(figure).map(row => row.map(cell).join(",")).join("\n") + "\n";
      return save(file + ".csv", new Blob([text], { type: "text/csv" }));
    }
    const [data, own] = drawn(figure, { paper_bgcolor: colour("--back"), title: figure.layout.title, margin: { l: 60, r: 20, t: 90, b: 60 } });
    Plotly.downloadImage({ data, layout: own }, { format: kind, filename: file, width: 800, height: 500, scale: kind === "png" ? 2 : 1 });
  });

  if (!document.body.hasAttribute("data-live")) return;
  let mark = null;
  const follow = async () => {
    const now = await (await fetch("/mark")).json();
    if (mark !== null && now !== mark) {
      const page = new DOMParser().parseFromString(await (await fetch("/")).text(), "text/html");
      if (!window.Plotly && page.querySelector("[data-figure]")) return location.reload();
      const open = [...document.querySelectorAll("details")].map(part => part.open);
      document.title = page.title;
      document.querySelectorAll("[data-figure]").forEach(place => Plotly.purge(place));
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.querySelectorAll("details").forEach((part, i) => { part.open = open[i] ?? false; });
      figures = JSON.parse(page.getElementById("figures").textContent);
      draw();
    }
    mark = now;
  };
  setInterval(() => follow().catch(() => {}), 2000);  // the server may be gone: the page stays as it is
})();
