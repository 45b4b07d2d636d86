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
	Mount         string // the directory that has the source and the targets, those of relative links if there are any
	Name          string // that of the source in it
	Absolute      bool   // some that leave are absolute, and do so wherever the dataset is mounted
}

// FindLinks reads the symbolic links with these names in a source, which is the directory root and is mounted at point,
// until ctx is done. It looks at no target: that may be where a call hangs.
func FindLinks(ctx context.Context, source any, root, point string, names []string) (l Links) {
	reader, ok := drivers.As[drivers.Readlinker](source)
	if !ok || len(names) == 0 {
		return l
	}
	dir := config.RealPath(root)
	var relative, absolute []string // what a mount must have for links that leave
	for _, name := range names {
		target, err := reader.Readlink(ctx, name)
		if err != nil {
			continue // it is gone, or may not be read
		}
		l.Seen++
		if path.IsAbs(target) {
			if point != "" && paths.Within(target, point) {
				continue
			}
			at := target
			if below, ok := paths.Rel(target, root); ok {
				at = path.Join(dir, below)
			}
			absolute = append(absolute, at)
		} else {
			above := dir
			for rest := path.Join(path.Dir(name), target) + "/"; strings.HasPrefix(rest, "../"); rest = rest[len("../"):] {
				above = path.Dir(above)
			}
			if above == dir {
				continue
			}
			relative = append(relative, above)
		}
		if l.Leaving++; l.Leaving == 1 {
			l.Example = paths.Printable(name) + " -> " + paths.Printable(target)
		}
	}
	l.Absolute = len(absolute) > 0
	if len(relative) == 0 {
		relative = absolute
	}
	l.Mount = dir
	for _, at := range relative {
		for l.Mount != "/" && !paths.Within(at, l.Mount) {
			l.Mount = path.Dir(l.Mount)
		}
	}
	l.Name, _ = paths.Rel(dir, l.Mount)
	return l
}

// Advice returns what is wrong and what to do, "" if no link leaves.
func (l Links) Advice() (detail, remedy string) {
	if l.Leaving == 0 {
		return "", ""
	}
	detail = fmt.Sprintf("%d of %d sampled symbolic links lead out of the mount, such as %s: their targets are missing there, or are read without Milkweed", l.Leaving, l.Seen, l.Example)
	var steps []string
	if l.Absolute {
		steps = append(steps, "Make the absolute links relative.")
	}
	switch {
	case l.Mount == "/":
		steps = append(steps, "Mount a directory that has the dataset and the targets, or copy them into the dataset.")
	case l.Name != ".":
		steps = append(steps, fmt.Sprintf("Mount %s, which has the targets, too, and use %s in that mount.", paths.Printable(l.Mount), paths.Printable(l.Name)))
	}
	return detail, strings.Join(steps, " ")
}
