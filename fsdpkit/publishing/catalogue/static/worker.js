// fsdpkit's own command line in a Python of its own, away from the page so that typing never waits.
// In: {id, asked}, asked as JSON of fsdpkit.cli.in_page.PageRequest. Out: {id, answered}; {stage}
// while it loads; {ready} once, or {failed} with the reason.
import { loadPyodide } from "../engine/pyodide.js";

const ENGINE = new URL("../engine/", import.meta.url);
const LIBRARY = "/catalogue/library";
const FOLDERS = "/catalogue/folders";
const PREPARE = `
import sys
sys.path.insert(0, "${LIBRARY}")
from pathlib import Path
import fsdpkit.cli.main, fsdpkit.cli.submit, fsdpkit.scheduling.submission
from fsdpkit.cli import in_page
files = in_page.CatalogueFiles(in_page.read_folders(Path("${FOLDERS}")))
lambda asked: in_page.answer(asked, files)
`;

async function zipFile(name) {
  const response = await fetch(new URL(name, ENGINE));
  if (!response.ok) throw new Error(`engine/${name}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

async function start() {
  postMessage({ stage: "Loading Python: 15 MB, once" });
  const files = Promise.all(["msgspec.zip", "modules.zip", "folders.zip"].map(zipFile));
  const python = await loadPyodide({ indexURL: ENGINE.href });
  postMessage({ stage: "Starting fsdpkit" });
  const [msgspec, modules, folders] = await files;
  for (const archive of [msgspec, modules]) {
    python.unpackArchive(archive, "zip", { extractDir: LIBRARY });
  }
  python.unpackArchive(folders, "zip", { extractDir: FOLDERS });
  return python.runPython(PREPARE);
}

const started = start();
started.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ failed: String(error?.message ?? error) }),
);
onmessage = async ({ data }) => {
  const answer = await started;
  postMessage({ id: data.id, answered: answer(data.asked) });
};
