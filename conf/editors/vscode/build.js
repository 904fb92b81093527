// Bundles the extension with its client into dist/, and takes the grammar along.
const { copyFileSync, mkdirSync } = require("node:fs");
const { buildSync } = require("esbuild");

mkdirSync("dist", { recursive: true });
copyFileSync("../lot.tmLanguage.json", "dist/lot.tmLanguage.json");
buildSync({
  entryPoints: ["extension.js"],
  outfile: "dist/extension.js",
  bundle: true,
  platform: "node",
  target: "node20",
  external: ["vscode"],
});
