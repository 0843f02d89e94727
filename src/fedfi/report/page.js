(() => {
  let figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = own => ({
    gridcolor: colour("--rule"), zerolinecolor: colour("--rule"), linecolor: colour("--rule"),
    automargin: true, ...own, title: { ...(own || {}).title, font: { size: 12 }, standoff: 8 },
  });
  const layout = own => ({
    ...own,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    title: undefined,  // the caption says it, where no tool bar lies over it and long ones wrap
    margin: { l: 52, r: 16, t: 30, b: 44 },
    legend: { orientation: "h", y: -0.22, font: { size: 11 } },
    xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
  });
  const draw = () => document.querySelectorAll("[data-figure]").forEach(place => {
    const figure = figures[Number(place.dataset.figure)];
    Plotly.react(place, figure.data, layout(figure.layout), { responsive: true, displaylogo: false, displayModeBar: "hover" });
  });
  draw();
  dark.addEventListener("change", draw);

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
