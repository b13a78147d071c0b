#!/bin/bash
# Fail if a Python package's libraries need one that is neither in the system nor in any package.
#
#   check-libraries.sh <folder of the package>
#
# Importing torch_neuronx would show the same, but needs a device, and a build has none.
set -euo pipefail
# Packages load each other's libraries, from any folder.
packaged=$(find "$(dirname "$1")/" -name "*.so*" -printf "%f => not found\n")
# ldd fails for a file that is no library.
needed=$(find "$1/" -name "*.so*" -exec ldd {} + 2>&1 || true)
missing=$(grep "not found" <<< "${needed}" \
    | grep --invert-match --fixed-strings --file=<(echo "${packaged}") || true)
if [[ -n ${missing} ]]; then
    echo "$1 needs libraries that are not installed:"
    echo "${missing}"
    exit 1
fi
