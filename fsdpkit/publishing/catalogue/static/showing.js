// What came back, on the page. Every text becomes a text node; nothing is ever read as markup.
"use strict";

// A script, line by line: comments, directives, and the lines that the last change brought. The
// text of the element is the script itself.
function showScript(element, text) {
  const before = element.dataset.shown === "yes" ? new Set(element.textContent.split("\n")) : null;
  const lines = text.split("\n").map((line, at, all) => {
    const made = document.createElement("span");
    made.textContent = at === all.length - 1 ? line : `${line}\n`;
    if (/^#(SBATCH\s|!)/.test(line)) made.className = "directive";
    else if (/^\s*#/.test(line)) made.className = "comment";
    if (before && line && !before.has(line)) made.classList.add("new");
    return made;
  });
  element.replaceChildren(...(text ? lines : []));
  element.dataset.shown = text ? "yes" : "no";
}

const SHAPE = new RegExp(
  String.raw`^--nodes (?<nodes>\d+) --gpus (?<gpus>\d+)(?: --time (?<time>\S+))?` +
  String.raw`(?: --spare (?<spare>\d+))?(?: --set resources\.memory=(?<memory>\S+))? on (?<partition>.+)$`,
);

// What the error offers, as buttons; take is called with what to put into which field.
function offersIn(error, take) {
  const listed = (words) => words.exec(error)?.[1].split("; ") ?? [];
  const partitions = listed(/^As asked it fits with (.*)\.$/m).flatMap((text) => {
    const [, partition] = /^--partition ([\w@%+=:,.\/-]+)$/.exec(text) ?? [];
    return partition ? [offer(`Take partition ${partition}`, () => take({ partition }))] : [];
  });
  const shapes = listed(/^(?:What|Nearest that) would fit: (.*)\.$/m).flatMap((text) => {
    const found = SHAPE.exec(text);
    if (!found) return [];
    const { nodes, gpus, time, spare, memory, partition } = found.groups;
    const more = [time && ` for ${time}`, spare && " without spare nodes", memory && ` with ${memory}`];
    const what = `Take ${nodes} × ${gpus} GPUs${more.filter(Boolean).join("")} on ${partition}`;
    return [offer(what, () => take({ nodes, gpus, time, spare, memory }))];
  });
  return [...partitions, ...shapes];
}

function offer(text, taken) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", taken);
  return made;
}

function partitionOf(script) {
  const partition = /^#SBATCH --partition=(.*)$/m.exec(script);
  return partition ? `, partition ${partition[1]}` : "";
}

function item(text) {
  const made = document.createElement("li");
  made.textContent = text;
  return made;
}
