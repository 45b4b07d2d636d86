// Package paths compares, prints and encodes paths by name alone. It calls no file system, so that a mount
// that hangs cannot block it. The paths are absolute and clean.
package paths

import (
	"strconv"
	"strings"
)

// Rel returns the name of path relative to dir, and whether path is dir or below it. The name
// of dir itself is ".".
func Rel(path, dir string) (name string, ok bool) {
	if path == dir {
		return ".", true
	}
	return strings.CutPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Within reports whether path is dir or below it.
func Within(path, dir string) bool {
	_, ok := Rel(path, dir)
	return ok
}

// Printable quotes a path, or another name, that has bytes which a terminal cannot show.
func Printable(path string) string {
	if q := strconv.Quote(path); len(q) != len(path)+2 || strings.Contains(path, "\uFFFD") {
		return q
	}
	return path
}
