// Runs main of compiling.py in the browser's Python, here: `node compiling.mjs ZIP…` in a directory that has its
// files and the archives, each of which is replaced.
import { readFileSync, writeFileSync } from "node:fs";
import { loadPyodide } from "./pyodide.js";

const archives = process.argv.slice(2);
const env = { HOME: "/", PYTHONHASHSEED: "0" }; // the same sources give the same bytes
const python = await loadPyodide({ indexURL: `${process.cwd()}/`, env });
python.FS.mkdirTree("/archives");
for (const name of archives) python.FS.writeFile(`/archives/${name}`, readFileSync(name));
python.runPython(`${readFileSync("compiling.py", "utf8")}\nmain()\n`);
for (const name of archives) writeFileSync(name, python.FS.readFile(`/archives/${name}`));
