// Unpacks Chromium, its libraries and a font from the npm package that make setup installed.
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const packed = join(import.meta.dirname, "node_modules", "@sparticuz", "chromium", "bin");
const folder = join(import.meta.dirname, "node_modules", ".chromium");

// The package unpacks into the system's temporary folder, and does not overwrite files.
await rm(folder, { recursive: true, force: true });
process.env.TMPDIR = folder;
const { inflate } = await import("@sparticuz/chromium");
await mkdir(folder);
for (const name of ["chromium.br", "al2023.tar.br", "fonts.tar.br"])
  await inflate(join(packed, name));

// The package's own fonts.conf has the folders of AWS Lambda; without a font no page is drawn.
await writeFile(
  join(folder, "fonts.conf"),
  `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>${join(folder, "fonts")}</dir><cachedir>${join(folder, "cache")}</cachedir></fontconfig>
`,
);
await rm(packed, { recursive: true });
