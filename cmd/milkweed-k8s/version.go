package main

import (
	"cmp"
	"runtime/debug"
)

// release is the version of a release. The linker sets it: -ldflags "-X main.release=1.2.3".
var release string

// version returns the version of the program.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return cmp.Or(release, info.Main.Version, "unknown")
	}
	return cmp.Or(release, "unknown")
}
