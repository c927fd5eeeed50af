// Builds the console: messages from the protos, then scripts, one style sheet and the page, into dist/ (or the folder
// given as the argument). The same sources give the same bytes. Run it as `make console`.

import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { basename, delimiter, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const REPOSITORY = dirname(HERE);
const GENERATED = join(HERE, "generated");
const OUTPUT = resolve(process.argv[2] ?? join(HERE, "dist"));
// What the console calls; what these import comes along.
const PROTOS = [
  "allm/audio/v1/transcription_service.proto",
  "allm/image/v1/image_service.proto",
  "allm/models/v1/machine_service.proto",
  "allm/models/v1/model_service.proto",
  "allm/text/v1/chat_service.proto",
  "google/rpc/error_details.proto",
  "google/rpc/status.proto",
];
const TYPES = {
  ".css": "text/css; charset=utf-8",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript; charset=utf-8",
  ".svg": "image/svg+xml",
};

/** All protos that `names` import, themselves included. */
function closure(names) {
  const found = new Map();
  const visit = (name) => {
    if (found.has(name) || name.startsWith("google/protobuf/")) return;
    const text = ["protos", "third_party"].map((root) => read(join(REPOSITORY, root, name))).find(Boolean);
    found.set(name, true);
    for (const [, next] of (text ?? "").matchAll(/^import "([^"]+)";/gm)) visit(next);
  };
  names.forEach(visit);
  return [...found.keys()].sort();
}

function read(path) {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return null;
  }
}

/** Writes the TypeScript of all messages into generated/, by protoc and the plugin of protobuf-es. */
function generate() {
  rmSync(GENERATED, { recursive: true, force: true });
  mkdirSync(GENERATED);
  const python = process.env.PYTHON ?? join(REPOSITORY, ".venv", "bin", "python");
  const plugin = join(HERE, "node_modules", "@bufbuild", "protoc-gen-es", "bin", "protoc-gen-es");
  const include = ["protos", "third_party"].flatMap((root) => ["-I", join(REPOSITORY, root)]);
  execFileSync(
    python,
    ["-m", "grpc_tools.protoc", ...include, `--plugin=protoc-gen-es=${plugin}`, `--es_out=${GENERATED}`,
      "--es_opt=target=ts", ...closure(PROTOS)],
    // The plugin is a script for `node`, which need not be on the path of whoever builds.
    { env: { ...process.env, PATH: dirname(process.execPath) + delimiter + process.env.PATH }, stdio: "inherit" },
  );
}

const OPTIONS = {
  absWorkingDir: HERE,
  outdir: OUTPUT,
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  bundle: true,
  splitting: true, // import() makes a file that loads on demand
  minify: true,
  write: false,
  format: "esm",
  target: ["es2022", "chrome123", "firefox120", "safari17.5"],
  loader: { ".svg": "copy" },
  legalComments: "none",
  charset: "utf8",
  logLevel: "warning",
  metafile: true,
};
// Mermaid's kinds of diagrams that are left out, because they are rare or, as mind maps, large; and their layouts.
const NOT_DRAWN = /\/(?:abnf|architecture|block|c4|cose|cynefin|diagram-|ebnf|info|ishikawa|kanban|mindmap|peg|railroad|requirement|sankey|swimlanes|venn|wardley)[^/]*$/;
const UNUSED = ["canvas", "cssomnom/parse", "dompurify", "katex", "perf_hooks"];

/** What draws diagrams: with a document outside of the page in place of `document` and `window`. */
function bundleDiagrams() {
  return build({
    ...OPTIONS,
    entryPoints: { diagrams: "src/diagrams/drawing.ts" },
    inject: ["src/diagrams/document.ts"],
    alias: Object.fromEntries(UNUSED.map((name) => [name, "./src/diagrams/unused.ts"])),
    plugins: [{
      name: "rare kinds",
      setup({ onResolve, onLoad }) {
        onResolve({ filter: NOT_DRAWN }, ({ path, kind }) => (kind === "dynamic-import" ? { path, namespace: "not-drawn" } : undefined));
        onLoad({ filter: /./, namespace: "not-drawn" }, () => ({ contents: 'throw new Error("Diagrams of this kind are not supported");' }));
      },
    }],
  });
}

/** The console itself, which loads `diagrams` on demand. */
function bundle(diagrams) {
  return build({
    ...OPTIONS,
    entryPoints: { console: "src/main.tsx", style: "src/style.css", recorder: "src/audio/recorder.ts", icon: "src/icon.svg" },
    jsx: "automatic",
    jsxImportSource: "preact",
    plugins: [{
      name: "diagrams",
      setup: ({ onResolve }) => onResolve({ filter: /^\.\/drawing$/ }, () => ({ path: `./${diagrams}`, external: true })),
    }],
  });
}

/** The licences of everything that is in the bundle. */
function licences(...metafiles) {
  const packages = new Set();
  for (const input of metafiles.flatMap((each) => Object.keys(each.inputs))) {
    const match = input.match(/node_modules\/((?:@[^/]+\/)?[^/]+)\//);
    if (match) packages.add(match[1]);
  }
  return [...packages].sort().map((name) => {
    const folder = join(HERE, "node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).sort().find((entry) => /^licen[cs]e/i.test(entry));
    const text = file ? readFileSync(join(folder, file), "utf8").trim() : "";
    return `${name} ${about.version} (${about.license ?? "licence below"})\n\n${text}\n`;
  }).join(`\n${"-".repeat(80)}\n\n`);
}

generate();
const drawing = await bundleDiagrams();
const shown = await bundle(basename(drawing.outputFiles.find((file) => /^diagrams-/.test(basename(file.path))).path));
const outputFiles = [...drawing.outputFiles, ...shown.outputFiles];
rmSync(OUTPUT, { recursive: true, force: true });
mkdirSync(OUTPUT, { recursive: true });
const names = {};
for (const file of outputFiles) {
  const name = basename(file.path);
  names[name.replace(/-[A-Z0-9]+(\.\w+)$/, "$1")] = name;
}
const files = [{ path: "/", file: "index.html" }];
for (const file of outputFiles) {
  const name = basename(file.path);
  writeFileSync(join(OUTPUT, name), file.contents);
  files.push({ path: `/assets/${name}`, file: name });
}
let page = readFileSync(join(HERE, "src", "index.html"), "utf8");
for (const [plain, hashed] of Object.entries(names)) page = page.replaceAll(`/assets/${plain}`, `/assets/${hashed}`);
writeFileSync(join(OUTPUT, "index.html"), page);
files.sort((a, b) => (a.path < b.path ? -1 : 1));
const listed = files.map((file) => ({ ...file, type: TYPES[file.file.slice(file.file.lastIndexOf("."))] }));
writeFileSync(join(OUTPUT, "files.json"), JSON.stringify(listed, null, 2) + "\n");
writeFileSync(join(OUTPUT, "licences.txt"), licences(drawing.metafile, shown.metafile));
