// Prints the impact of an update on each resource, as determined by the pinned CLI's `cdk diff`.
//
// Standard input: {stack: [deployed template, new template]}. Standard output: {stack: {logical id:
// {impact, properties: {name: impact}}}}, with the CLI's own names of impacts. `cdk diff` has no
// machine-readable output; this uses the CLI's internal class, so a new CLI may need a change here.
const { join } = require("node:path");
const { readFileSync } = require("node:fs");
const { DiffFormatter } = require(join(__dirname, "node_modules", "aws-cdk", "lib", "index.js"));

const impacts = {};
for (const [stack, [deployed, next]] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const formatter = new DiffFormatter({ templateInfo: { newTemplate: { stackName: stack } } });
  impacts[stack] = {};
  const { resources } = formatter.computeDiff(stack, deployed, next, undefined, {});
  resources.forEachDifference((id, change) => {
    const updates = Object.entries(change.propertyUpdates);
    const properties = Object.fromEntries(updates.map(([name, update]) => [name, update.changeImpact]));
    impacts[stack][id] = { impact: change.changeImpact, properties };
  });
}
process.stdout.write(JSON.stringify(impacts));
