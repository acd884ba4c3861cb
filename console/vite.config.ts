/**
 * Builds the console into the Python package, so that the wheel and a fresh clone need no node.
 *
 * The bytes depend on the sources alone: names carry a hash of their content, and BUILT_FROM says of which sources this
 * is the bundle. A test of Python computes the same digest, and finds a bundle that was not built again.
 */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { defineConfig, type Plugin } from "vite";

const HERE = import.meta.dirname;
const ROOT = join(HERE, "..");
const BUNDLE = join(ROOT, "src/tablecast/server/console_bundle");
/** What the bundle is made of: everything below these, but for what npm installs. */
const SOURCES = [
  "console/src",
  "console/index.html",
  "console/package.json",
  "console/package-lock.json",
  "console/tsconfig.json",
  "console/vite.config.ts",
  "clients/js/src",
];

/** SHA-256 over path, NUL, SHA-256 of the content, newline; of each file in the order of the paths' code points. */
function digestOfSources(): string {
  const files = SOURCES.flatMap((source) => filesBelow(join(ROOT, source))).map((file) => relative(ROOT, file));
  const whole = createHash("sha256");
  for (const file of files.sort()) {
    whole.update(
      `${file}\0${createHash("sha256")
        .update(readFileSync(join(ROOT, file)))
        .digest("hex")}\n`,
    );
  }
  return whole.digest("hex");
}

function filesBelow(path: string): string[] {
  try {
    return readdirSync(path, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOTDIR") return [path];
    throw error;
  }
}

function builtFrom(): Plugin {
  return {
    name: "built-from",
    generateBundle() {
      this.emitFile({ type: "asset", fileName: "BUILT_FROM", source: `${digestOfSources()}\n` });
    },
  };
}

export default defineConfig({
  base: "./", // the server may be below a path, behind a proxy
  resolve: { alias: { tablecast: join(ROOT, "clients/js/src/index.js") } },
  plugins: [builtFrom()],
  build: {
    outDir: process.env.CONSOLE_OUT ?? BUNDLE,
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0, // the policy of the page allows no data: addresses
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    chunkSizeWarningLimit: 600,
  },
  server: { proxy: { "/v1": { target: process.env.TABLECAST_URL ?? "http://127.0.0.1:8080", ws: true } } },
});
