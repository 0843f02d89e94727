(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
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
    margin: { l: 52, r: 16, t: 44, b: 44 },
    legend: { orientation: "h", y: -0.22, font: { size: 11 } },
    xaxis: axis(own.xaxis), yaxis: axis(own.yaxis),
  });
  const draw = () => document.querySelectorAll("[data-figure]").forEach(place => {
    const figure = figures[Number(place.dataset.figure)];
    Plotly.react(place, figure.data, layout(figure.layout), { responsive: true, displaylogo: false });
  });
  draw();
  dark.addEventListener("change", draw);
})();
