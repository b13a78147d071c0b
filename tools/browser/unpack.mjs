// Unpacks Chromium, its libraries and a font out of the npm package, which make setup has installed.
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

const packed = join(import.meta.dirname, "node_modules", "@sparticuz", "chromium", "bin");
const folder = join(import.meta.dirname, "node_modules", ".chromium");

// The package unpacks to where the system keeps temporary files, and never over what is there.
await rm(folder, { recursive: true, force: true });
process.env.TMPDIR = folder;
const { inflate } = await import("@sparticuz/chromium");
await mkdir(folder);
for (const name of ["chromium.br", "al2023.tar.br", "fonts.tar.br"])
  await inflate(join(packed, name));

// The package's own file names folders of AWS Lambda; a machine without any font draws no page.
await writeFile(
  join(folder, "fonts.conf"),
  `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>${join(folder, "fonts")}</dir><cachedir>${join(folder, "cache")}</cachedir></fontconfig>
`,
);
await rm(packed, { recursive: true });
