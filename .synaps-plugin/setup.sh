#!/bin/sh
# Runs once after an install from git (runtime). A Node that strips types itself needs no package.
set -e
cd "${SYNAPS_PLUGIN_DIR:-$(dirname "$0")/..}"
if [ "$(node -p 'Boolean(process.features.typescript)')" = true ]; then
  echo "nothing to install: this Node runs TypeScript"
else
  npm ci --include=dev # tsx
fi
