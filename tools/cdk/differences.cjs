// Prints what an update does to each resource, as `cdk diff` of the pinned CLI judges it.
//
// Standard input: {stack: [deployed template, new template]}. Standard output: {stack: {logical id:
// {impact, properties: {name: impact}}}}, the impacts in the CLI's words. `cdk diff` itself prints
// for people only; this is the class that it prints from, so a new CLI may need a change here.
const { join } = require("node:path");
const { readFileSync } = require("node:fs");
const { DiffFormatter } = require(join(__dirname, "node_modules", "aws-cdk", "lib", "index.js"));

const found = {};
for (const [stack, [deployed, next]] of Object.entries(JSON.parse(readFileSync(0, "utf8")))) {
  const formatter = new DiffFormatter({ templateInfo: { newTemplate: { stackName: stack } } });
  found[stack] = {};
  const { resources } = formatter.computeDiff(stack, deployed, next, undefined, {});
  resources.forEachDifference((id, change) => {
    const updates = Object.entries(change.propertyUpdates);
    const properties = Object.fromEntries(updates.map(([name, to]) => [name, to.changeImpact]));
    found[stack][id] = { impact: change.changeImpact, properties };
  });
}
process.stdout.write(JSON.stringify(found));
