"use strict";
// Shows the numbers under the pointer, or where arrow keys lead, read off the drawing: the paths are
// all the data there is.
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
    if (x[2] !== "clock") return `${x[5] || "step"} ${Math.round(at).toLocaleString("en")}`;
    return new Date((at + x[4]) * 1000).toISOString().slice(5, 19).replace("T", " ");
  };
  let place = 0;
  const show = (at) => {
    place = at = Math.min(1000, Math.max(0, at));
    lines ??= [...svg.querySelectorAll(".line[data-name]")]
      .filter((path) => path.dataset.name).map((path) => [path.dataset.name, points(path)]);
    cross.setAttribute("x1", `${at / 10}%`);
    cross.setAttribute("x2", `${at / 10}%`);
    cross.setAttribute("visibility", "visible");
    const near = lines.map(([name, all]) => {
      const best = all.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a), [1e9, 0]);
      return Math.abs(best[0] - at) < 25 ? `${name} ${three.format(value(y, 1 - best[1] / height))}` : "";
    }).filter(Boolean);
    output.textContent = [told(value(x, at / 1000)), ...near.slice(0, 5)].join(" · ") +
      (near.length && y[3] ? ` ${y[3]}` : "");
  };
  const hide = () => {
    output.textContent = "";
    cross.setAttribute("visibility", "hidden");
  };
  svg.tabIndex = 0;
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -10, ArrowRight: 10 }[event.key];
    if (step) {
      event.preventDefault();
      show(place + step);
    }
  });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(((event.clientX - box.left) / box.width) * 1000);
  });
  svg.addEventListener("blur", hide);
  svg.addEventListener("pointerleave", hide);
}
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
