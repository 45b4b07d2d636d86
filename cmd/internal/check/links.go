package check

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
	"github.com/milkweedfs/milkweed/drivers"
)

// Links describes symbolic links of a source that lead out of a mount, by their text. Through the mount their targets
// are missing, or are read past it.
type Links struct {
	Leaving, Seen int
	Example       string // one that leaves, as ls(1) shows it
	Absolute      bool   // some that leave are absolute, and do so wherever the dataset is mounted
	Mount         string // the directory to which those lead that would stay in a mount of it; "": there is none
	Name          string // that of the source in it
}

// examinedLinks bounds the links that are read, each of which takes a request.
const examinedLinks = 16

// FindLinks reads some symbolic links with these names, until ctx is done. The source is mounted at point, and is the
// directory root; "" is none. FindLinks looks at no target: that may be where a call hangs.
func FindLinks(ctx context.Context, source any, root, point string, names []string) (l Links) {
	reader, ok := drivers.As[drivers.Readlinker](source)
	if !ok || len(names) == 0 {
		return l
	}
	dir := ""
	if root != "" {
		dir = config.RealPath(root)
	}
	var relative, absolute []string // where links that leave lead to
	for _, name := range names[:min(len(names), examinedLinks)] {
		target, err := reader.Readlink(ctx, name)
		if err != nil {
			continue // it is gone, or may not be read, or ctx is done
		}
		l.Seen++
		isAbsolute, at := path.IsAbs(target), path.Join(point, path.Dir(name), target)
		if isAbsolute {
			at = path.Clean(target)
		}
		above := path.Join(path.Dir(name), target)
		switch {
		case point != "" && paths.Within(at, point), !isAbsolute && above != ".." && !strings.HasPrefix(above, "../"):
			continue
		case !isAbsolute:
			relative = append(relative, parentOf(dir, above))
		default:
			if below, ok := paths.Rel(at, root); ok {
				at = path.Join(dir, below)
			}
			absolute = append(absolute, at)
		}
		if l.Leaving++; l.Leaving == 1 {
			l.Example = paths.Printable(name) + " -> " + paths.Printable(target)
		}
	}
	l.Absolute = len(absolute) > 0
	if len(relative) == 0 {
		relative = absolute
	}
	if l.Mount = dir; dir != "" {
		for _, at := range relative {
			for l.Mount != "/" && !paths.Within(at, l.Mount) {
				l.Mount = path.Dir(l.Mount)
			}
		}
		l.Name, _ = paths.Rel(dir, l.Mount)
	}
	return l
}

// parentOf returns the directory above dir where a path below it leads first, which begins with "..".
func parentOf(dir, above string) string {
	for rest := above + "/"; strings.HasPrefix(rest, "../"); rest = rest[len("../"):] {
		dir = path.Dir(dir)
	}
	return dir
}

// Advice returns what is wrong and what to do, "" if no link leaves.
func (l Links) Advice() (detail, remedy string) {
	if l.Leaving == 0 {
		return "", ""
	}
	detail = fmt.Sprintf("%d of %d sampled symbolic links lead out of the mount, such as %s: their targets are missing there, or are read without Milkweed",
		l.Leaving, l.Seen, l.Example)
	switch {
	case l.Mount == "/" || l.Mount == "" || l.Name == "." && !l.Absolute:
		remedy = "Mount a directory to which they lead, too, or replace the links by the files."
	case l.Name != ".":
		remedy = fmt.Sprintf("Mount %s, to which they lead, and use %s in that mount.", paths.Printable(l.Mount), paths.Printable(l.Name))
	}
	if l.Absolute {
		remedy = strings.TrimSpace("Make absolute links relative. " + remedy)
	}
	return detail, remedy
}
