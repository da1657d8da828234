#!/bin/sh
# Runs once after an install from git (runtime): tsx is a devDependency, and without it nothing starts.
set -e
cd "${SYNAPS_PLUGIN_DIR:-$(dirname "$0")/..}"
npm ci --include=dev
