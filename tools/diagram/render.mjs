// Reads DOT on standard input, writes SVG on standard output.
import { instance } from "@viz-js/viz";
import { readFileSync } from "node:fs";

const viz = await instance();
process.stdout.write(viz.renderString(readFileSync(0, "utf8"), { format: "svg" }));
