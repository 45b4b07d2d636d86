package drivertest

import (
	"runtime/debug"
	"slices"
)

// Race reports whether this program was built with the race detector.
func Race() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}
