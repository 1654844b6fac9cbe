// The form: reads it, shows the command line at once, and the script when Python has written it.
import { Answering } from "./answering.js";
import { askedOf, commandOf, wordsOf } from "./asking.js";
import { fill, fragmentOf, valueOf } from "./linking.js";

const at = (id) => document.getElementById(id);
const form = at("form");
const controls = [...form.elements].filter((control) => control.name);
const centreFields = controls.map((c) => c.name).filter((name) => /^centre\d+$/.test(name));
const PAUSE_MS = 100;
const NO_DIRECTORY =
  "The directory that you submit from is not named, so the script says /home/you/project.";

// ---- What the form says

const chosen = (select) => select.selectedOptions[0];
const limits = () => JSON.parse(chosen(at("cluster"))?.dataset.limits ?? "{}");
const shape = () => JSON.parse(chosen(at("job"))?.dataset.shape ?? "{}");
const values = () => Object.fromEntries(controls.map((c) => [c.name, valueOf(c).trim()]));
const templateInUse = () => at("template").value || shape().template;

function fields() {
  return controls
    .filter((c) => (c.closest("[data-template]")?.dataset.template ?? templateInUse()) === templateInUse())
    .map((c) => ({ name: c.name, ...c.dataset }));
}

// ---- What it says of the choice before Python is there

function hint() {
  const { account = {}, partitions = [], container } = limits();
  const most = (key) => {
    const known = partitions.map((partition) => partition[key]);
    return known.length && known.every((n) => n) ? Math.max(...known) : null;
  };
  const { nodes, gpus, time, about } = shape();
  Object.assign(at("nodes"), { placeholder: nodes ?? "", max: most("nodes") ?? 10000 });
  Object.assign(at("gpus"), { placeholder: gpus ?? "", max: most("gpus") ?? 64 });
  at("time").placeholder = time ?? "";
  at("account").placeholder = account.example ?? "";
  at("account").required = Boolean(account.required);
  at("account-help").textContent = [
    account.required ? "Needed there." : "The project to charge.",
    account.find ? `List yours: ${account.find}` : "",
  ].join(" ").trim();
  at("cluster-help").textContent = partitions.map(inWords).join("; ");
  at("job-help").textContent = about ?? "";
  at("template-help").textContent = chosen(at("template"))?.dataset.about ?? "";
  at("container-help").textContent = container
    ? `It runs with ${container}.`
    : "The cluster's profile names no container engine.";
  at("partitions").replaceChildren(...partitions.map(({ name }) => new Option(name)));
  at("own").hidden = at("job").value !== "";
  for (const one of document.querySelectorAll("[data-template]")) {
    one.hidden = one.dataset.template !== templateInUse();
  }
}

function inWords({ name, gpus, nodes, time }) {
  const parts = [gpus && `${gpus} GPUs a node`, nodes && `up to ${nodes} nodes`, time && `up to ${time}`];
  return `${name}: ${parts.filter(Boolean).join(", ") || "limits unknown"}`;
}

// ---- What comes back

function show({ status, out, err }, words, seconds) {
  const fits = status === 0;
  const told = err.split("\n").filter((line) => line && !line.startsWith("fsdpkit: RUN-ID stands"));
  const warnings = fits ? told.map((line) => line.replace(/^fsdpkit: /, "")) : [];
  if (fits && !at("work-dir").value.trim()) warnings.unshift(NO_DIRECTORY);
  at("state").textContent = fits
    ? `The script is ready: ${out.split("\n").length - 1} lines${where(out)}.`
    : `fsdpkit submit would refuse this (exit status ${status}).`;
  at("state").className = fits ? "good" : "bad";
  at("speed").textContent = `written in ${Math.max(1, Math.round(seconds * 1000))} ms`;
  at("refused").hidden = fits;
  at("error").textContent = fits ? "" : err.trimEnd();
  at("would").replaceChildren(...(fits ? [] : offers(err)));
  at("warned").hidden = warnings.length === 0;
  at("warnings").replaceChildren(...warnings.map((text) => item(text)));
  if (!fits) at("footprint").textContent = "";
  at("script").textContent = out;
  at("script").dataset.answers = commandOf(words);
  for (const id of ["copy-script", "download"]) at(id).disabled = !fits;
}

function where(script) {
  const partition = /^#SBATCH --partition=(.*)$/m.exec(script);
  return partition ? `, partition ${partition[1]}` : "";
}

function item(text) {
  const made = document.createElement("li");
  made.textContent = text;
  return made;
}

// The shapes that the error names, as buttons that fill the form.
function offers(err) {
  const named = /^What would fit: (.*)\.$/m.exec(err)?.[1].split("; ") ?? [];
  return named.flatMap((text) => {
    const found = /^--nodes (\d+) --gpus (\d+)(?: --time (\S+))? on (.+)$/.exec(text);
    if (!found) return [];
    const [, nodes, gpus, time, partition] = found;
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = `Take ${nodes} × ${gpus} GPUs${time ? ` for ${time}` : ""} on ${partition}`;
    made.addEventListener("click", () => {
      Object.assign(at("nodes"), { value: nodes });
      Object.assign(at("gpus"), { value: gpus });
      if (time) at("time").value = time;
      changed();
      at("state").focus();
    });
    return [made];
  });
}

// ---- Asking: one question at a time, and of those that wait only the last

let answering = null;
let busy = false;
let again = false;
let timer = 0;

function changed() {
  hint();
  at("command").textContent = commandOf(wordsOf(values(), fields()));
  history.replaceState(null, "", `#${fragmentOf(controls)}`);
  clearTimeout(timer);
  timer = setTimeout(ask, PAUSE_MS);
}

async function ask() {
  if (busy || answering === null) {
    again = busy;
    return;
  }
  busy = true;
  try {
    do {
      again = false;
      const said = values();
      const words = wordsOf(said, fields());
      await answering.ready;
      const before = performance.now();
      const asked = askedOf(said, words, centreFields);
      const answered = await answering.ask(asked);
      if (again) continue;
      show(answered, words, (performance.now() - before) / 1000);
      const known = answered.status === 0 ? await answering.memory(asked) : "";
      if (!again) at("footprint").textContent = known;
    } while (again);
  } catch (error) {
    failed(error);
  } finally {
    busy = false;
  }
}

function failed(error) {
  answering = null;
  at("state").className = "bad";
  at("state").textContent =
    `The renderer did not start (${error.message}). It needs a web server and a browser with ` +
    "WebAssembly. The command line below is complete: add --dry-run to see its script.";
}

// ---- Copies

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    at("copied").textContent = `${what} copied.`;
  } catch {
    at("copied").textContent = "The browser did not allow it: select the text and copy it.";
  }
}

at("copy-command").addEventListener("click", () => copy(at("command").textContent, "Command"));
at("copy-script").addEventListener("click", () => copy(at("script").textContent, "Script"));
at("copy-link").addEventListener("click", () => copy(location.href, "Link"));
at("download").addEventListener("click", () => {
  const url = URL.createObjectURL(new Blob([at("script").textContent], { type: "text/plain" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: "job.sbatch" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
});

// ---- Begin

function readLink() {
  const refused = location.hash.length > 1 ? fill(controls, location.hash.slice(1)) : [];
  at("note").hidden = refused.length === 0;
  at("note").textContent = refused.length
    ? `This link said more than the form takes, which is left out: ${refused.slice(0, 8).join(", ")}.`
    : "";
  for (const fold of form.querySelectorAll("details")) {
    fold.open ||= [...fold.querySelectorAll("[name]")].some((c) => fragmentOf([c]) !== "");
  }
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", changed);
addEventListener("hashchange", () => {
  form.reset();
  readLink();
  changed();
});
readLink();
changed();
try {
  answering = new Answering();
  answering.ready.catch(failed);
} catch (error) {
  failed(error);
}
ask();
