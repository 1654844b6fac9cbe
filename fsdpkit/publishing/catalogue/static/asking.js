// From the form's values to the words of a command line, and to what stands in for a shell. No DOM.
"use strict";

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;
const BARE = /^[A-Za-z_][A-Za-z0-9_.-]*$/;
const READ_OTHERWISE = /^(true|false|inf|nan)$/;

// As Python's shlex.quote.
function quoted(word) {
  return PLAIN.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`;
}

// --set reads the values of parameters as TOML; a text that TOML could read otherwise is quoted.
function asToml(value, type) {
  if (type !== "str" || (BARE.test(value) && !READ_OTHERWISE.test(value))) return value;
  return JSON.stringify(value).replaceAll("\x7f", "\\u007f");
}

function linesOf(text) {
  return text.split("\n").map((line) => line.replace(/\r$/, "")).filter((line) => line !== "");
}

// values: by name of a field; fields: [{name, option, set, type, lines}] in the form's order.
function wordsOf(values, fields) {
  const words = [];
  const job = values.job || values["script-path"];
  if (job) words.push(job);
  for (const { name, option, set, type, lines } of fields) {
    const value = values[name] ?? "";
    if (value === "") continue;
    if (option) words.push(option, value);
    else if (set) words.push("--set", `${set}=${asToml(value, type)}`);
    else if (lines) words.push(...linesOf(value).flatMap((line) => [lines, line]));
  }
  const args = linesOf(values.args ?? "");
  return args.length ? [...words, "--", ...args] : words;
}

function commandOf(words) {
  return ["fsdpkit", "submit", ...words].map(quoted).join(" ");
}

// A whole path without what a shell's working directory never has.
function path(text, base = "/") {
  const parts = [];
  for (const part of (text.startsWith("/") ? text : `${base}/${text}`).split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return `/${parts.join("/")}`;
}

// What fsdpkit.cli.in_page.PageRequest holds.
function askedOf(values, words, centreFields) {
  const home = path(values.home || "/home/you");
  const workDir = path(values["work-dir"] || `${home}/project`);
  const centres = centreFields.map((name) => path(values[name] || `/${name}`));
  const variables = { HOME: home };
  if (centres.length) variables.FSDPKIT_SITE_PATH = centres.join(":");
  if (values.runs) variables.FSDPKIT_RUNS = values.runs;
  if (values.channel) variables.FSDPKIT_CHANNEL = values.channel;
  if (values["sbatch-account"]) variables.SBATCH_ACCOUNT = values["sbatch-account"];
  const files = {};
  if (values.defaults) files[`${home}/.config/fsdpkit/defaults.toml`] = values.defaults;
  if (!values.job && values["script-path"]?.endsWith(".py")) {
    const script = values["script-path"];
    files[script.startsWith("~/") ? path(script.slice(2), home) : path(script, workDir)] = "";
  }
  const python = {
    kind: values["python-kind"],
    path: path(values["python-path"] || "/usr/bin"),
    conda: values["python-kind"] === "conda" ? values["python-conda"] || "conda" : "",
  };
  const packaged = path(values.packaged || "/usr/lib/fsdpkit");
  const expedites = Boolean(values.expedites);
  return {
    words,
    surroundings: { work_dir: workDir, variables, python, packaged, expedites },
    centres,
    files,
  };
}
