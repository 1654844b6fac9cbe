"use strict";
// Shows the numbers under the pointer, read off the drawing: the paths are all the data there is.
const three = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
for (const svg of document.querySelectorAll("svg.chart[data-x]")) {
  const [x, y] = [JSON.parse(svg.dataset.x), JSON.parse(svg.dataset.y)];
  const height = Number(svg.getAttribute("height"));
  const output = svg.closest("figure").querySelector("output");
  const cross = svg.querySelector(".cross");
  let lines = null;
  const points = (path) => path.getAttribute("d").split(/[ML]/).slice(1)
    .map((pair) => pair.split(" ").map(parseFloat));
  const value = ([low, high, kind], share) =>
    kind === "log" ? low * (high / low) ** share : low + (high - low) * share;
  const told = (at) => {
    if (x[2] !== "clock") return `step ${Math.round(at).toLocaleString("en")}`;
    return new Date((at + x[4]) * 1000).toISOString().slice(5, 19).replace("T", " ");
  };
  svg.addEventListener("pointermove", (event) => {
    lines ??= [...svg.querySelectorAll(".line[data-name]")]
      .filter((path) => path.dataset.name).map((path) => [path.dataset.name, points(path)]);
    const box = svg.getBoundingClientRect();
    const at = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)) * 1000;
    cross.setAttribute("x1", `${at / 10}%`);
    cross.setAttribute("x2", `${at / 10}%`);
    cross.setAttribute("visibility", "visible");
    const near = lines.map(([name, all]) => {
      const best = all.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a), [1e9, 0]);
      return Math.abs(best[0] - at) < 25 ? `${name} ${three.format(value(y, 1 - best[1] / height))}` : "";
    }).filter(Boolean);
    output.textContent = [told(value(x, at / 1000)), ...near.slice(0, 5)].join(" · ") +
      (near.length && y[3] ? ` ${y[3]}` : "");
  });
  svg.addEventListener("pointerleave", () => {
    output.textContent = "";
    cross.setAttribute("visibility", "hidden");
  });
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
