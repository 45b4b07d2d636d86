package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

const maxTiers = 16

// Validate checks what Load and Set cannot: that nothing is missing, and that
// the source is a folder or a bucket, and that its folder, the tiers and the mount
// point are different places, none within another, through symbolic links and
// bind mounts. Milkweed would copy its own
// copies otherwise, or hide them under its mount. The file of names may lie in
// a tier, where Milkweed leaves alone what is not a copy of its own, but
// neither in the source nor under the mount.
//
// It calls the file system for that, for five seconds at most: a mount that
// hangs is for package check to report.
func (c *Config) Validate() error {
	if err := c.validateSource(); err != nil {
		return err
	}
	if c.Mount.Point == "" {
		return c.wrong("mount.point", "is missing",
			"Give MOUNTPOINT on the command line, or point in the table [mount].")
	}
	if err := c.validateTiers(); err != nil {
		return err
	}
	return c.validatePlaces()
}

func (c *Config) validateSource() error {
	switch s := c.Source; {
	case s.Path == "" && s.URL == "":
		return c.wrong("source.path", "is missing",
			"Give SOURCE on the command line, or path or url in the table [source].")
	case s.Path != "" && s.URL != "":
		return c.wrong("source.url", fmt.Sprintf("there is source.path too, from %s", c.Origin("source.path")),
			"Leave one of them out: a dataset is in a folder or in a bucket.")
	}
	return nil
}

// wrong is the error for the value of a full key. A value that nobody set has
// no place to name.
func (c *Config) wrong(full, what, remedy string) error {
	name := full
	if i := strings.IndexByte(full, '['); i >= 0 {
		name = full[:i] + full[strings.IndexByte(full, ']')+1:]
	}
	where := ""
	for f := full; where == "" && f != ""; f = f[:max(0, strings.LastIndexByte(f, '.'))] {
		if o, ok := c.origins[f]; ok { // else that of its table
			where = o + ": "
		}
	}
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s%s: %s", where, name, what), Remedy: remedy}
}

func (c *Config) validateTiers() error {
	if len(c.Tiers) == 0 {
		return c.wrong(tierTable, "there is none",
			"Add a [[tier]] with a name, a path and a quota; or give SOURCE and MOUNTPOINT and no file, for tiers in memory and in the cache folder.")
	}
	if len(c.Tiers) > maxTiers {
		return c.wrong(tierTable+fmt.Sprintf("[%d]", maxTiers), fmt.Sprintf("there are %d, more than %d", len(c.Tiers), maxTiers),
			"Two or three are what a node has: memory, an SSD, a disk.")
	}
	named := make(map[string]int)
	for i, t := range c.Tiers {
		for _, k := range keys {
			if k.table == tierTable && k.field(c, &t).String() == k.field(c, &Tier{}).String() {
				return c.wrong(tierKey(i, k.name), "is missing", k.hint)
			}
		}
		if first, ok := named[t.Name]; ok {
			return c.wrong(tierKey(i, "name"), fmt.Sprintf("%q is also the name of tier %d", t.Name, first+1),
				"Give each tier a name of its own: commands and metrics tell them apart by it.")
		}
		named[t.Name] = i
	}
	return nil
}

// A place is a directory, or the file of names, that the configuration names.
// It may not exist yet.
type place struct {
	full  string        // its full key
	what  string        // what the user calls it
	role  role          // what it is for
	paths []string      // as given, and with symbolic links resolved
	self  os.FileInfo   // nil while it does not exist
	chain []os.FileInfo // it and its parents, as far as they exist
}

// A role is what a place is for, as far as that decides where it may lie.
type role int

const (
	dataset role = iota // the source or the mount point
	tier
	names
)

func (c *Config) places() []place {
	var all []place
	if c.Source.Path != "" {
		all = append(all, place{full: "source.path", what: "the source", paths: []string{c.Source.Path}})
	}
	for i, t := range c.Tiers {
		all = append(all, place{full: tierKey(i, "path"), what: fmt.Sprintf("the tier %q", t.Name), role: tier, paths: []string{t.Path}})
	}
	all = append(all, place{full: "mount.point", what: "the mount point", paths: []string{c.Mount.Point}})
	if c.Mount.Names != "" {
		all = append(all, place{full: "mount.names", role: names, paths: []string{c.Mount.Names}})
	}
	return all
}

var patience = 5 * time.Second // that a file system is given to answer; a variable for the test

func (c *Config) validatePlaces() error {
	if err := c.compare(c.places()); err != nil { // by name alone first, which cannot hang
		return err
	}
	looked := make(chan []place, 1)
	go func() { // a hung file system keeps it for as long as it hangs
		places := c.places()
		for i := range places {
			places[i].look()
		}
		looked <- places
	}()
	select {
	case places := <-looked:
		return c.compare(places)
	case <-time.After(patience):
		return nil
	}
}

func (c *Config) compare(places []place) error {
	for i, later := range places {
		for _, earlier := range places[:i] {
			if later.role == names && earlier.role == tier {
				continue
			}
			relation := ""
			switch inside, around := later.within(earlier), earlier.within(later); {
			case inside && around:
				relation = "is"
			case inside:
				relation = "lies inside"
			case around:
				relation = "contains"
			default:
				continue
			}
			return c.wrong(later.full, fmt.Sprintf("%q %s %s %q", later.paths[0], relation, earlier.what, earlier.paths[0]),
				later.remedy())
		}
	}
	return nil
}

func (p place) remedy() string {
	if p.role == names {
		return "Choose a file outside of the source, which is only read, and of the mount point, which hides what is below."
	}
	return "The source, each tier and the mount point must be directories of their own, none inside another."
}

// look asks the file system what the place really is.
func (p *place) look() {
	p.paths = append(p.paths, realPath(p.paths[0]))
	p.self, _ = os.Stat(p.paths[1])
	for dir := p.paths[1]; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil {
			p.chain = append(p.chain, info)
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// realPath resolves the symbolic links in as much of path as exists.
func realPath(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(realPath(parent), filepath.Base(path))
}

// within reports whether p is q or lies inside it, by path, or because p or
// one of its parents is the same directory as q under another name, as a bind
// mount makes it. A bind mount of a directory inside q is not noticed.
func (p place) within(q place) bool {
	for i, path := range p.paths {
		if i < len(q.paths) && hasPrefix(path, q.paths[i]) {
			return true
		}
	}
	return q.self != nil && slices.ContainsFunc(p.chain, func(dir os.FileInfo) bool {
		return os.SameFile(dir, q.self)
	})
}

// hasPrefix reports whether path is dir or below it.
func hasPrefix(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}
