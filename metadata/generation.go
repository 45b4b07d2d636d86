package metadata

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"syscall"
)

// Generations: the root of a source may hold several generations of a dataset, immutable versions of the
// whole, each in a directory of its own. A program sees one of them, the current one, as the root of
// the mount, and all of them below GenerationsDir. The paths of entries, and the names of copies, begin
// with the name of the generation. So the current one is a single pointer, Container.top, and Switch
// changes it in one step, while entries, copies and open files of the others stay what they are.

// GenerationsDir is the name of the directory in the root of a mount that has all generations.
const GenerationsDir = ".generations"

// ErrNoGenerations is the error of Switch if the source has no generations.
var ErrNoGenerations = errors.New("the source has no generations: it is not a symbolic link to one")

// HasGenerations reports whether the source holds generations; see Options.Generation.
func (c *Container) HasGenerations() bool { return c.top.Load() != c.root }

// Top returns the directory that is the root of the mount: that of the current generation, or Root if
// there are no generations. If the source has replaced the directory, Top may be stale.
func (c *Container) Top() *Entry {
	e := c.top.Load()
	if e.Stale() {
		if now, _, _ := c.root.dir.find(e.Name()); now != nil && now.IsDir() && c.top.CompareAndSwap(e, now) {
			return now
		}
	}
	return e
}

// IsShown reports whether e is the root of the mount or is below it: an entry of another generation is
// not.
func (c *Container) IsShown(e *Entry) bool {
	top := c.Top()
	return top == c.root || e.isIn(top)
}

// Generation returns the name of the current generation, or "" if there are none.
func (c *Container) Generation() string {
	if e := c.top.Load(); e != c.root {
		return e.Name()
	}
	return ""
}

// Generations returns the directories in the root of the source, sorted by name.
func (c *Container) Generations(ctx context.Context) ([]*Entry, error) {
	c.Confirm(ctx, c.Top()) // for isLost; a source that does not answer fails the listing, too
	all, err := c.List(ctx, c.root)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(all), func(e *Entry) bool { return !e.IsDir() || e.isLost() }), nil
}

// Switch makes the generation of a name the current one, and returns the one before. Lookups that
// begin later find the new one; the caller makes the kernel forget the names that it has cached.
func (c *Container) Switch(ctx context.Context, name string) (before *Entry, err error) {
	if !c.HasGenerations() {
		return nil, ErrNoGenerations
	}
	e, err := c.FindGeneration(ctx, name)
	if err != nil {
		return nil, err
	}
	return c.top.Swap(e), nil
}

// FindGeneration returns the directory of a generation. The error for a name that the source does not
// have matches io/fs.ErrNotExist, and for one that is no directory syscall.ENOTDIR or syscall.EINVAL.
func (c *Container) FindGeneration(ctx context.Context, name string) (*Entry, error) {
	if !validName(name) {
		return nil, fmt.Errorf("generation %q: %w", name, syscall.EINVAL)
	}
	e, err := c.Lookup(ctx, c.root, name)
	if err == nil && !e.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, fmt.Errorf("generation %s: %w", name, err)
	}
	return e, nil
}

// Inside returns the path, below the root of the source, of a name below the root of the mount.
func (c *Container) Inside(name string) string {
	generation := c.Generation()
	first, rest, _ := strings.Cut(name, "/")
	switch {
	case generation == "":
		return name
	case name == ".":
		return generation
	case first != GenerationsDir:
		return generation + "/" + name
	case rest == "":
		return "."
	}
	return rest
}

// Outside is the inverse of Inside.
func (c *Container) Outside(path string) string {
	generation := c.Generation()
	first, rest, _ := strings.Cut(path, "/")
	switch {
	case generation == "":
		return path
	case path == ".":
		return GenerationsDir
	case first != generation:
		return GenerationsDir + "/" + path
	case rest == "":
		return "."
	}
	return rest
}

// Held yields the regular files at and below e of which the kernel has a node: those that are open,
// and others that it has cached.
func (c *Container) Held(e *Entry) iter.Seq[*Entry] {
	return func(yield func(*Entry) bool) { c.eachHeld(e, yield) }
}

// eachHeld calls yield until it returns false, and then returns false. A stale entry that is not in the table
// may have lookups: those of a listing that was opened before. Forget does not find it, and no request does.
func (c *Container) eachHeld(e *Entry, yield func(*Entry) bool) bool {
	if e.dir == nil {
		return !e.IsRegular() || e.lookups.Load() <= 0 || c.table.get(e.id) != e || yield(e)
	}
	e.dir.mu.Lock()
	below := e.dir.every()
	e.dir.mu.Unlock()
	for _, b := range below {
		if !c.eachHeld(b, yield) {
			return false
		}
	}
	return true
}

// useGeneration makes a directory of the root the first generation, unless its name is "".
func (c *Container) useGeneration(ctx context.Context, name string) error {
	c.top.Store(c.root)
	if name == "" {
		return nil
	}
	e, err := c.FindGeneration(ctx, name)
	if err == nil {
		c.top.Store(e)
	}
	return err
}
