// Package config is the configuration of one mount: the values of tiering.toml,
// the values that flags override, a default for every other value, and the
// origin of each value.
//
// A command calls Find and Load, or starts from Default. It overrides single
// values with Set, and calls Validate once after the last change. Load and Set
// refuse a value that is invalid by itself. Validate refuses values that
// contradict each other. Every error is an *exit.Error with code exit.Usage. Its
// text is one line with the key and the origin of the value, and it has a remedy.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// Config is the configuration of one mount. Its paths are absolute and clean, and
// its URL contains no secret.
type Config struct {
	Profile   string // NoProfile, or the Name of a Profile
	Source    Source
	Tiers     []Tier // fastest first
	Mount     Mount
	Placement Placement
	Peers     Peers
	Scrub     Scrub
	Metrics   Metrics
	Log       Log

	origins map[string]string // the origin of each value that the user has set, by storage key; see lookup
}

// Source is the storage that holds the complete dataset: a directory or a bucket.
type Source struct {
	Path       string // the directory; "" if URL is set
	URL        string // the bucket, such as "s3://bucket/prefix?region=eu-west-1"; "" if Path is set
	Bandwidth  int64  // limit on the bytes per second of all reads together; 0 for no limit
	Operations int64  // limit on the operations of all kinds started per second; 0 for no limit

	Generation string // the directory that is shown, of those that hold generations; "" for the target of a link

	Manifest string // the list of the files and their hashes: a path, or ManifestInDataset and a name; "" for none

	ClockSkew time.Duration // by which the clocks of the source and of this machine may differ
}

// A Tier is a directory that stores copies.
type Tier struct {
	Name  string // lower-case letters, digits, "_" and "-"; unique within the configuration
	Path  string // the directory; created if it is missing
	Quota Quota  // how much of its file system Milkweed may use
}

// Mount is the view of the dataset that the job gets.
type Mount struct {
	Point            string        // an empty directory; "" until it is set
	Mode             Mode          // how the kernel reads the content of files
	AllowOther       bool          // whether other users may read the mount
	ForceAllowOther  bool          // whether AllowOther is accepted with a source whose access rules are not applied
	Xattrs           bool          // whether extended attributes are shown
	AttrTimeout      time.Duration // the TTL of cached names and attributes
	Consistency      time.Duration // within this time a change at the source is seen; 0: after AttrTimeout
	MetadataSnapshot string        // SnapshotInTier, NoSnapshot, or the path of the file
	Plan             string        // a file with the order in which the job opens files; "" for none
}

// ManifestInDataset is the prefix of a Source.Manifest that is a file of the dataset, and of each generation
// of it. The name below the root of the dataset follows.
const ManifestInDataset = "dataset:"

// Where the metadata snapshot is, if it is not in a file of its own.
const (
	SnapshotInTier = "auto" // with the copies in a tier
	NoSnapshot     = "off"  // there is none
)

// SnapshotFile returns the path of the file of the metadata snapshot, or "" if it is in a tier or
// there is none.
func (m Mount) SnapshotFile() string {
	if filepath.IsAbs(m.MetadataSnapshot) {
		return m.MetadataSnapshot
	}
	return ""
}

// A Mode is a way in which the kernel reads the content of files.
type Mode string

// The modes.
const (
	Auto        Mode = "auto"        // chosen at mount by the dataset and the machine
	Passthrough Mode = "passthrough" // the kernel reads files on tiers directly, where it can
	Stateless   Mode = "stateless"   // opens need no FUSE round trip; pages stay cached
	Cached      Mode = "cached"      // opens and page-cache misses go through the daemon
)

// Placement is the configuration of the copies from the source to the tiers.
type Placement struct {
	Workers int   // files copied at the same time, 1 to 256
	Window  Quota // share of the fastest tier for planned files without permanent room; the zero value for none
}

// Peers is the configuration of the nodes that share their tiers.
type Peers struct {
	Roster     string        // which nodes share their tiers, as roster.Resolve reads it; "" for none
	Name       string        // the name of this node in the roster; "" to find it
	Listen     string        // host:port, where the host may be empty; "" for the port of this node in the roster
	SecretFile string        // the file with the secret that all nodes have; "" for none
	Serve      bool          // whether this node serves other nodes
	Gossip     bool          // whether the nodes tell each other which of them are up
	Min        int           // the number of nodes of a roster that is discovered
	Wait       time.Duration // the longest wait for a roster that is discovered
	TLSCert    string        // the file with the certificate of this node; "" for plain connections
	TLSKey     string        // the file with its key
	TLSCA      string        // the file with the authorities of all certificates
	Group      int           // the largest number of nodes that form one cache; 0 for all
}

// Scrub is the configuration of the scheduled scrubs, which verify all copies.
type Scrub struct {
	Interval time.Duration // the time between two scrubs; 0 for none
	Rate     int64         // limit on the bytes per second that a scheduled scrub reads; 0 for no limit
}

// Metrics is the configuration of the Prometheus endpoint.
type Metrics struct {
	Listen string // host:port; "" for no endpoint
}

// Log is the configuration of the daemon's log.
type Log struct {
	Level  slog.Level // the lowest severity that is written
	Format string     // "text" or "json"
	File   string     // "" for the default of the command
}

// Default returns the configuration of an empty tiering.toml. It is not valid:
// it has no source, no mount point and no tier.
func Default() Config {
	return Config{
		Profile:   NoProfile,
		Source:    Source{ClockSkew: 5 * time.Second},
		Mount:     Mount{Mode: Auto, AttrTimeout: time.Hour, Consistency: consistencyForDirectory, MetadataSnapshot: SnapshotInTier},
		Placement: Placement{Workers: defaultWorkers},
		Peers:     Peers{Serve: true, Gossip: true, Wait: 2 * time.Minute},
		Scrub:     Scrub{Rate: 50e6},
		Log:       Log{Level: slog.LevelInfo, Format: "text"},
	}
}

// Environment is the environment variable with the path of the configuration
// file. Find reads it if the command line names no file.
const Environment = "MILKWEED_CONFIG"

// Find returns the path of the configuration file: explicit if it is not "";
// otherwise the value of $MILKWEED_CONFIG; otherwise the first file that exists of
// ./tiering.toml, $XDG_CONFIG_HOME/milkweed/tiering.toml (with ~/.config as the
// default folder) and /etc/milkweed/tiering.toml.
//
// A command line with SOURCE, MOUNTPOINT and no configuration file is complete.
// Its command starts from Default and does not call Find, so that a file in the
// current directory cannot change its meaning.
func Find(explicit string) (string, error) {
	if explicit != "" {
		return explicit, nil
	}
	if env := os.Getenv(Environment); env != "" {
		return env, nil
	}
	candidates := []string{"tiering.toml"}
	if dir, err := os.UserConfigDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "milkweed", "tiering.toml"))
	}
	candidates = append(candidates, filepath.Join(systemFolder, "milkweed", "tiering.toml"))
	for _, path := range candidates {
		// A file that exists but cannot be read is returned: Load reports the reason.
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			return path, nil
		}
	}
	return "", &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("no configuration file: none of %s exists", strings.Join(candidates, ", ")),
		Remedy: "Give SOURCE and MOUNTPOINT on the command line, or name a file with -c.",
	}
}

var systemFolder = "/etc" // a variable so that the test can replace it

// Load reads a configuration file. Keys that the file does not set have their
// defaults. An unknown key is an error.
func Load(path string) (*Config, error) {
	file, err := absolute(path)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, &exit.Error{
			Code:   exit.Usage,
			Err:    fmt.Errorf("configuration: %w", err),
			Remedy: "Name a file that can be read with -c, or give SOURCE and MOUNTPOINT on the command line.",
		}
	}
	return Parse(path, data)
}

// Parse is like Load for a file whose content is data. Its errors and origins
// refer to the file as name.
func Parse(name string, data []byte) (*Config, error) {
	tree := make(map[string]any)
	if _, err := toml.NewDecoder(bytes.NewReader(data)).Decode(&tree); err != nil {
		return nil, syntaxError(name, err)
	}
	c := Default()
	if err := c.decode(name, tree, scanLines(string(data))); err != nil {
		return nil, err
	}
	return &c, nil
}

func syntaxError(name string, err error) error {
	message := err.Error()
	if e, ok := errors.AsType[toml.ParseError](err); ok {
		name = fmt.Sprintf("%s:%d", name, e.Position.Line)
		message = e.Message
	}
	message = strings.Join(strings.Fields(message), " ") // one line
	return &exit.Error{
		Code:   exit.Usage,
		Err:    fmt.Errorf("%s: not TOML: %s", name, message),
		Remedy: `Write each line as key = value, with text in double quotes, such as path = "/data".`,
	}
}
