package config

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/paths"
)

const maxTiers = 16

// Validate checks the rules that concern several values: that no required value is
// missing, that the source is either a directory or a bucket, and that the source
// directory, the tiers and the mount point are distinct directories, none inside
// another. Otherwise Milkweed would copy its own copies or hide them under its
// mount. Symbolic links and bind mounts are taken into account.
//
// The metadata snapshot may be in a tier, where Milkweed does not touch files other
// than its copies. It may be neither in the source nor below the mount point. The plan
// may not be below the mount point.
//
// Validate calls the file system for at most five seconds, that of a tier for a quarter of
// one. It ignores a file system that hangs, because package check reports that.
func (c *Config) Validate() error { return c.validate(true) }

// ValidateForCheck is Validate, except that the mount point may be missing.
func (c *Config) ValidateForCheck() error { return c.validate(false) }

// ValidateValues is Validate without the calls to the file system, for a daemon, which must not use its own
// mount.
func (c *Config) ValidateValues() error { return c.validateValues(true) }

func (c *Config) validate(needsPoint bool) error {
	if err := c.validateValues(needsPoint); err != nil {
		return err
	}
	return c.validatePaths()
}

func (c *Config) validateValues(needsPoint bool) error {
	if err := c.validateSource(); err != nil {
		return err
	}
	if needsPoint && c.Mount.Point == "" {
		return c.invalid("mount.point", "is missing",
			"Give MOUNTPOINT on the command line, or set point in the table [mount].")
	}
	if err := c.validateTiers(); err != nil {
		return err
	}
	if err := c.validateWindow(); err != nil {
		return err
	}
	return c.validatePeers()
}

func (c *Config) validateSource() error {
	switch s := c.Source; {
	case s.Path == "" && s.URL == "":
		return c.invalid("source.path", "is missing",
			"Give SOURCE on the command line, or set path or url in the table [source].")
	case s.Path != "" && s.URL != "":
		return c.invalid("source.url", fmt.Sprintf("source.path is set too, by %s", c.Origin("source.path")),
			"Remove one of the two: a dataset is in a directory or in a bucket.")
	}
	return nil
}

// invalid returns the error for the value with a storage key. The error begins with
// the origin of the value, or else with the origin of its table, if either has one.
func (c *Config) invalid(storageKey, problem, remedy string) error {
	key := storageKey
	if i := strings.IndexByte(key, '['); i >= 0 { // "tier[0].quota" is shown as "tier.quota"
		key = key[:i] + key[strings.IndexByte(key, ']')+1:]
	}
	prefix := ""
	for k := storageKey; prefix == "" && k != ""; k = k[:max(0, strings.LastIndexByte(k, '.'))] {
		if o := c.originOf(k); o != originDefault {
			prefix = o + ": "
		}
	}
	return &exit.Error{Code: exit.Usage, Err: fmt.Errorf("%s%s: %s", prefix, key, problem), Remedy: remedy}
}

func (c *Config) validateTiers() error {
	if len(c.Tiers) == 0 {
		return c.invalid(tierTable, "no tier is configured",
			"Add a [[tier]] with a name, a path and a quota; or give SOURCE and MOUNTPOINT without a file, for tiers in memory and in the cache folder.")
	}
	if len(c.Tiers) > maxTiers {
		return c.invalid(tierTable+fmt.Sprintf("[%d]", maxTiers), fmt.Sprintf("%d tiers are more than %d", len(c.Tiers), maxTiers),
			"Use one tier for each kind of storage of the node: memory, an SSD, a disk.")
	}
	named := make(map[string]int)
	for i, t := range c.Tiers {
		for _, k := range keys {
			if k.Table == tierTable && k.field(c, &t).String() == k.field(c, &Tier{}).String() {
				return c.invalid(tierKey(i, k.Name), "is missing", k.remedy)
			}
		}
		if first, ok := named[t.Name]; ok {
			return c.invalid(tierKey(i, "name"), fmt.Sprintf("%q is also the name of tier %d", t.Name, first+1),
				"Give each tier a unique name: commands and metrics identify tiers by name.")
		}
		named[t.Name] = i
	}
	return nil
}

// validateWindow refuses a window that cannot be in the quota of the fastest tier. Of a quota in
// percent, the size is known when the tier is open.
func (c *Config) validateWindow() error {
	window, quota := c.Placement.Window, c.Tiers[0].Quota
	if window.Bytes == 0 || quota.Bytes == 0 || window.Bytes <= quota.Bytes {
		return nil
	}
	return c.invalid("placement.window", fmt.Sprintf("%s is more than the quota of tier %s, which is %s", window, c.Tiers[0].Name, quota),
		"The window is a part of the quota of the fastest tier; what is left is for copies that stay.")
}

func (c *Config) validatePeers() error {
	p := c.Peers
	if p.Roster == "" {
		return nil
	}
	files := map[string]string{"peers.tls_cert": p.TLSCert, "peers.tls_key": p.TLSKey, "peers.tls_ca": p.TLSCA}
	for _, key := range slices.Sorted(maps.Keys(files)) {
		if files[key] == "" && p.TLSCert+p.TLSKey+p.TLSCA != "" {
			return c.invalid(key, "is missing", "Set peers.tls_cert, peers.tls_key and peers.tls_ca, or none of them.")
		}
	}
	switch {
	case p.Min == 0 && strings.HasPrefix(p.Roster, rosterDNS):
		return c.invalid("peers.min", fmt.Sprintf("is missing, and the roster is %q", p.Roster),
			"Set min to the number of nodes of the job: the roster is complete when it has that many.")
	case p.Serve && p.SecretFile == "" && p.Listen != "" && !IsLoopback(p.Listen):
		return c.invalid("peers.listen", fmt.Sprintf("other machines can reach %s, and there is no secret", p.Listen), SecretRemedy)
	}
	return nil
}

// SecretRemedy is the remedy for peers without a secret.
const SecretRemedy = "Make a secret with `umask 077; milkweed peers keygen > FILE`, and give all nodes --peers-secret FILE."

// IsLoopback reports whether an address, host:port, can be reached from this machine only. It
// resolves no name except localhost.
func IsLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback())
}

// A configuredPath is a directory or file of the configuration. It may not exist
// yet.
type configuredPath struct {
	storageKey  string
	description string // such as "the source", for messages
	role        pathRole
	paths       []string      // as configured and, after resolve, with symbolic links resolved
	info        os.FileInfo   // set by resolve; nil if it does not exist
	ancestors   []os.FileInfo // set by resolve: the path and its parents, those that exist
}

// A pathRole determines which other paths a path may contain.
type pathRole int

const (
	datasetRole  pathRole = iota // the source or the mount point
	tierRole                     // the directory of a tier
	snapshotRole                 // the file of the metadata snapshot
	planRole                     // the file of the plan
)

// configuredPaths returns all paths whose relation Validate checks.
func (c *Config) configuredPaths() []configuredPath {
	var all []configuredPath
	add := func(storageKey, description string, role pathRole, path string) {
		all = append(all, configuredPath{storageKey: storageKey, description: description, role: role, paths: []string{path}})
	}
	if c.Source.Path != "" {
		add("source.path", "the source", datasetRole, c.Source.Path)
	}
	for i, t := range c.Tiers {
		add(tierKey(i, "path"), fmt.Sprintf("the tier %q", t.Name), tierRole, t.Path)
	}
	if c.Mount.Point != "" {
		add("mount.point", "the mount point", datasetRole, c.Mount.Point)
	}
	if file := c.Mount.SnapshotFile(); file != "" {
		add("mount.metadata_snapshot", "the metadata snapshot", snapshotRole, file)
	}
	if c.Mount.Plan != "" {
		add("mount.plan", "the plan", planRole, c.Mount.Plan)
	}
	return all
}

// These limit the calls to the file system. A mount starts without a tier or a metadata snapshot
// that hangs, and waits for it only for tierTimeout. They are variables so that the test can
// shorten them.
var (
	resolveTimeout = 5 * time.Second
	tierTimeout    = 250 * time.Millisecond
)

func (c *Config) validatePaths() error {
	all := c.configuredPaths()
	if err := c.compare(all); err != nil { // compares the text only, so it cannot hang
		return err
	}
	resolved := make([]chan configuredPath, len(all))
	for i, p := range all {
		resolved[i] = make(chan configuredPath, 1)
		go func() { // blocks as long as a file system hangs
			p.resolve()
			resolved[i] <- p
		}()
	}
	var known []configuredPath
	for i, start := 0, time.Now(); i < len(all); i++ {
		limit := resolveTimeout
		if all[i].role != datasetRole {
			limit = tierTimeout
		}
		timer := time.NewTimer(max(limit-time.Since(start), time.Millisecond))
		select {
		case p := <-resolved[i]:
			known = append(known, p)
		case <-timer.C:
		}
		timer.Stop()
	}
	return c.compare(known)
}

// compare returns an error if one of the paths is equal to another or inside it.
func (c *Config) compare(paths []configuredPath) error {
	for i, later := range paths {
		for _, earlier := range paths[:i] {
			if later.role == snapshotRole && earlier.role == tierRole || later.role == planRole && earlier.storageKey != "mount.point" {
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
			return c.invalid(later.storageKey, fmt.Sprintf("%q %s %s %q", later.paths[0], relation, earlier.description, earlier.paths[0]),
				later.remedy())
		}
	}
	return nil
}

func (p configuredPath) remedy() string {
	switch p.role {
	case planRole:
		return "Choose a file outside of the mount point, which hides the files below it."
	case snapshotRole:
		return "Choose a file outside of the source, which is read-only, and of the mount point, which hides the files below it."
	}
	return "The source, each tier and the mount point must be separate directories, none inside another."
}

// resolve reads from the file system which directory or file the path refers to.
func (p *configuredPath) resolve() {
	p.paths = append(p.paths, RealPath(p.paths[0]))
	p.info, _ = os.Stat(p.paths[1])
	for dir := p.paths[1]; ; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err == nil {
			p.ancestors = append(p.ancestors, info)
		}
		if dir == filepath.Dir(dir) {
			return
		}
	}
}

// RealPath returns path with its symbolic links resolved. It resolves the part of
// path that exists, and leaves the rest unchanged.
func RealPath(path string) string {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		return resolved
	}
	parent := filepath.Dir(path)
	if parent == path {
		return path
	}
	return filepath.Join(RealPath(parent), filepath.Base(path))
}

// within reports whether p is equal to q or inside it. It compares the paths, and
// also whether p or one of its parents is the same directory as q under another
// name, as with a bind mount. It does not detect a bind mount of a directory
// inside q.
func (p configuredPath) within(q configuredPath) bool {
	for i, path := range p.paths {
		if i < len(q.paths) && paths.Within(path, q.paths[i]) {
			return true
		}
	}
	return q.info != nil && slices.ContainsFunc(p.ancestors, func(dir os.FileInfo) bool {
		return os.SameFile(dir, q.info)
	})
}
