// Starts hello-ext.ts, through tsx only where this Node strips no types: before 22.18, or below a
// node_modules folder. Keeps what it compiled beside the packages: the next start takes half the
// time. Where it cannot write there, all works without.
import module from "node:module";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url)); // the real path
module.enableCompileCache?.(`${root}node_modules/.cache`); // not in /tmp, which is everybody's

const strips = process.features.typescript && !/[\\/]node_modules[\\/]/.test(root);
if (strips || (await import("tsx").catch(() => undefined))) {
  await import("../hello-ext.ts");
} else {
  console.error("[hello-ext] needs Node 22.18 or newer; or, for an older one, npm ci in its folder");
  process.exitCode = 1;
}
