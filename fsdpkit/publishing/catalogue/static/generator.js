// The form: reads it, shows the command line at once, and the script when Python has written it.
"use strict";
{
  const at = (id) => document.getElementById(id);
  const form = at("form");
  const controls = [...form.elements].filter((control) => control.name);
  const folds = new Map(controls.map((c) => [c, c.closest("[data-template]")?.dataset.template]));
  const centreFields = controls.map((c) => c.name).filter((name) => /^centre\d+$/.test(name));
  const PAUSE_MS = 100;
  const NO_DIRECTORY =
    "The directory that you submit from is not named, so the script says /home/you/project.";

  // ---- What the form says

  const chosen = (select) => select.selectedOptions[0];
  const limits = () => JSON.parse(chosen(at("cluster"))?.dataset.limits ?? "{}");
  const shape = () => JSON.parse(chosen(at("job"))?.dataset.shape ?? "{}");
  const values = () => Object.fromEntries(controls.map((c) => [c.name, valueOf(c).trim()]));

  // Whose parameters are shown: a job may pin a version, torchrun@2.
  function groupInUse() {
    const named = at("template").value || shape().template || "";
    const options = [...at("template").options];
    const by = (name) => options.find((option) => name && option.value === name)?.dataset.group;
    return by(named) ?? by(named.split("@")[0]);
  }

  function fields() {
    const group = groupInUse();
    return controls
      .filter((c) => folds.get(c) === undefined || folds.get(c) === group)
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
    at("cluster-help").replaceChildren(...partitions.flatMap((one, n) => [
      ...(n ? [document.createElement("br")] : []), inWords(one),
    ]));
    at("job-help").textContent = about ?? "";
    at("template-help").textContent = chosen(at("template"))?.dataset.about ?? "";
    at("container-help").textContent = container
      ? `It runs with ${container}.`
      : "The cluster's profile names no container engine.";
    at("partitions").replaceChildren(...partitions.map(({ name }) => new Option(name)));
    at("own").hidden = at("job").value !== "";
    const group = groupInUse();
    for (const one of document.querySelectorAll("[data-template]")) {
      one.hidden = one.dataset.template !== group;
      const set = [...one.querySelectorAll("[name]")].filter((c) => valueOf(c) !== "").length;
      one.querySelector(".set").textContent = set ? `, ${set} set` : "";
    }
  }

  function inWords({ name, gpus, nodes, time }) {
    const parts = [gpus && `${gpus} GPUs a node`, nodes && `up to ${nodes} ${nodes > 1 ? "nodes" : "node"}`, time && `up to ${time}`];
    return `${name}: ${parts.filter(Boolean).join(", ") || "limits unknown"}`;
  }

  function find({ target }) {
    const wanted = target.value.trim().toLowerCase();
    for (const one of target.closest("details").querySelectorAll(".grid > .field")) {
      one.hidden = wanted !== "" && !one.textContent.toLowerCase().includes(wanted);
    }
  }

  // ---- What comes back

  function show({ status, out, err }, words, seconds) {
    const fits = status === 0;
    const told = err.split("\n").filter((line) => line && !line.startsWith("fsdpkit: RUN-ID stands"));
    const warnings = fits ? told.map((line) => line.replace(/^fsdpkit: /, "")) : [];
    if (fits && !at("work-dir").value.trim()) warnings.unshift(NO_DIRECTORY);
    const missing = !fits && !at("account").validity.valid && err.includes(" needs an account ");
    at("state").textContent = fits
      ? `The script is ready: ${out.split("\n").length - 1} lines${partitionOf(out)}.`
      : missing
        ? "Your account is still missing."
        : `fsdpkit submit would refuse this (exit status ${status}).`;
    at("state").className = fits ? "good" : missing ? "missing" : "bad";
    at("speed").textContent = `written in ${Math.max(1, Math.round(seconds * 1000))} ms`;
    at("refused").hidden = fits;
    at("refused").className = missing ? "panel warn" : "panel bad";
    at("refused-title").textContent = missing ? "What fsdpkit submit says" : "Why not";
    at("error").textContent = fits ? "" : err.trimEnd();
    at("would").replaceChildren(...(fits ? [] : offersIn(err, take)));
    at("warned").hidden = warnings.length === 0;
    at("warnings").replaceChildren(...warnings.map((text) => item(text)));
    at("script").dataset.empty = fits ? "" : "No script: see above.";
    showScript(at("script"), out);
    at("script").dataset.answers = commandOf(words);
    for (const id of ["copy-script", "download"]) at(id).disabled = !fits;
    jump();
  }

  function take(offered) {
    for (const [id, value] of Object.entries(offered)) if (value) at(id).value = value;
    changed();
    at("result").focus();
  }

  // On a narrow screen the result is below the form: its state stays in sight.
  const seen = new IntersectionObserver(([result]) => {
    at("jump").classList.toggle("seen", result.isIntersecting);
  }, { rootMargin: "0px 0px -25% 0px" });
  seen.observe(at("result"));

  function jump() {
    at("jump").hidden = false;
    at("jump-state").textContent = at("state").textContent;
    at("jump-state").className = at("state").className;
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
        const answered = await answering.ask(askedOf(said, words, centreFields));
        if (again) continue;
        show(answered, words, (performance.now() - before) / 1000);
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
    const file = location.protocol === "file:";
    at("state").textContent = "No script here, but the command below is complete.";
    at("refused").hidden = false;
    at("refused").className = "panel warn";
    at("refused-title").textContent = file ? "Opened as a file" : "The renderer did not start";
    at("error").textContent = (file
      ? "Browsers start the renderer only from a web server. In the pages' directory, type\n" +
        "  python3 -m http.server --bind 127.0.0.1\n" +
        "and open http://127.0.0.1:8000/generator.html\n"
      : `${error.message}\nIt needs a web server that serves engine/, and a browser with WebAssembly.\n`) +
      "Or add --dry-run to the command, on a login node: it prints the same script.";
    at("speed").textContent = "";
    at("script").dataset.empty = "";
    jump();
  }

  // ---- Copies

  async function copy(button, element, text, what) {
    try {
      await navigator.clipboard.writeText(text);
      at("copied").textContent = `${what} copied.`;
    } catch {
      if (element) getSelection().selectAllChildren(element);
      at("copied").textContent = element
        ? `The browser did not allow it. The ${what.toLowerCase()} is selected: copy it with Ctrl+C.`
        : "The browser did not allow it: copy the address of this page.";
      return;
    }
    const before = button.textContent;
    if (button.dataset.busy) return;
    button.dataset.busy = "yes";
    button.textContent = "Copied";
    setTimeout(() => {
      button.textContent = before;
      delete button.dataset.busy;
    }, 1500);
  }

  function download() {
    const url = URL.createObjectURL(new Blob([at("script").textContent], { type: "text/plain" }));
    const link = Object.assign(document.createElement("a"), { href: url, download: "job.sbatch" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  for (const [id, shown, what] of [["copy-command", "command", "Command"], ["copy-script", "script", "Script"]]) {
    at(id).addEventListener("click", () => copy(at(id), at(shown), at(shown).textContent, what));
  }
  at("copy-link").addEventListener("click", () => copy(at("copy-link"), null, location.href, "Link"));
  at("download").addEventListener("click", download);
  at("jump-to").addEventListener("click", () => {
    at("result").scrollIntoView({ block: "start" });
    at("result").focus({ preventScroll: true });
  });
  for (const id of ["copy-command", "copy-link"]) at(id).disabled = false;
  for (const one of document.querySelectorAll("div.find")) one.hidden = false;
  for (const one of document.querySelectorAll("input.find")) {
    one.addEventListener("input", (event) => {
      event.stopPropagation(); // it says nothing of the job
      find(event);
    });
  }

  // ---- Begin

  // A fragment without = is an anchor, such as that of the link to the content.
  const said = () => (location.hash.includes("=") ? location.hash.slice(1) : "");

  function readLink() {
    const refused = said() ? fill(controls, said()) : [];
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
    if (!said()) return;
    form.reset();
    readLink();
    changed();
  });
  readLink();
  changed();
  at("state").textContent = "Getting ready…";
  try {
    answering = new Answering((stage) => {
      at("state").textContent = `${stage}…`;
    });
    answering.ready.catch(failed);
  } catch (error) {
    failed(error);
  }
  ask();
}
