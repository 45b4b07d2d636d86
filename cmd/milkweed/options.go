package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/spf13/pflag"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

// helperName is the name under which mount(8) and /etc/fstab find the program:
// the type of the file system is milkweed.
const helperName = "mount.milkweed"

// optionKeys are the options that are values of the configuration.
var optionKeys = map[string]string{
	"source_bandwidth":  "source.bandwidth",
	"source_operations": "source.operations",
	"allow_other":       "mount.allow_other",
	"attr_timeout":      "mount.attr_timeout",
	"mode":              "mount.mode",
	"names":             "mount.names",
	"workers":           "placement.workers",
	"metrics":           "metrics.listen",
	"log_level":         "log.level",
	"log_format":        "log.format",
	"log_file":          "log.file",
}

// idleOptions are those that mean something to mount(8) or systemd, or to
// other file systems, and nothing to a mount of Milkweed, which is always
// read-only, nosuid and nodev.
var idleOptions = []string{
	"ro", "defaults", "suid", "nosuid", "dev", "nodev", "exec", "auto", "noauto", "fail", "nofail", "_netdev", "nonetdev",
	"user", "nouser", "users", "owner", "noowner", "group", "nogroup", "sync", "async", "dirsync", "silent", "loud",
	"atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime",
	"lazytime", "nolazytime", "mand", "nomand", "iversion", "noiversion",
}

// idlePrefixes begin options of the same kind.
var idlePrefixes = []string{"x-", "X-", "comment=", "uhelper=", "helper="}

// An options is what -o says.
type options struct {
	config string      // the configuration file; "" if it is not said
	values [][2]string // values of the configuration: key and text
	noExec bool        // nothing in the mount may be executed
}

// parseOptions reads what follows -o, as a line of /etc/fstab has it.
func parseOptions(s string) (options, error) {
	var o options
	for word := range strings.SplitSeq(s, ",") {
		if err := o.add(word); err != nil {
			return options{}, err
		}
	}
	return o, nil
}

func (o *options) add(word string) error {
	name, value, hasValue := strings.Cut(word, "=")
	key := optionKeys[name]
	switch {
	case word == "" || isIdle(word):
		return nil
	case word == "noexec":
		o.noExec = true
		return nil
	case word == "rw":
		return optionError(errors.New(`option "rw": the mount is read-only`), "Leave it out, or write ro.")
	case key == "mount.allow_other" && !hasValue:
		value = "true"
	case (key != "" || name == "config") && value == "":
		return optionError(fmt.Errorf("option %q has no value", name), fmt.Sprintf("Write %s=VALUE.", name))
	case name == "config":
		o.config = value
		return nil
	case key == "":
		return unknownOption(name)
	}
	o.values = append(o.values, [2]string{name, value})
	return nil
}

// set overrides the values of c.
func (o *options) set(c *config.Config) error {
	for _, v := range o.values {
		if err := c.Set(optionKeys[v[0]], v[1], "option "+v[0]); err != nil {
			return err
		}
	}
	return nil
}

func isIdle(word string) bool {
	return slices.Contains(idleOptions, word) ||
		slices.ContainsFunc(idlePrefixes, func(p string) bool { return strings.HasPrefix(word, p) })
}

// ownOptions lists the options that are Milkweed's.
func ownOptions() []string {
	names := []string{"config"}
	for name := range optionKeys {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func optionError(err error, remedy string) error {
	return &exit.Error{Code: exit.Usage, Err: err, Remedy: remedy}
}

func unknownOption(name string) error {
	known := slices.Concat(ownOptions(), idleOptions)
	near := slices.MinFunc(known, func(a, b string) int {
		return levenshtein.Distance(name, a, nil) - levenshtein.Distance(name, b, nil)
	})
	err := fmt.Errorf("unknown option %q", name)
	if levenshtein.Distance(name, near, nil) <= max(1, len(name)/3) {
		err = fmt.Errorf("%w: did you mean %q?", err, near)
	}
	return optionError(err, "Milkweed's own options are "+strings.Join(ownOptions(), ", ")+".")
}

// fromHelper translates what mount(8) gives to a helper,
//
//	mount.milkweed SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o options] [-t type]
//
// into the words of our own command line. -f has another meaning there: do all
// but mount. SOURCE is "none" where the configuration says it.
func fromHelper(words []string) ([]string, error) {
	flags := pflag.NewFlagSet(helperName, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	fake := flags.BoolP("fake", "f", false, "")
	sloppy := flags.BoolP("sloppy", "s", false, "")
	said := flags.StringArrayP("options", "o", nil, "")
	flags.BoolP("no-mtab", "n", false, "") // there is none any more
	flags.BoolP("verbose", "v", false, "")
	flags.StringP("namespace", "N", "", "") // mount(8) has entered it
	flags.StringP("types", "t", "", "")
	if err := flags.Parse(words); err != nil {
		return nil, optionError(fmt.Errorf("%s: %w", helperName, err), helperUsage)
	}
	if flags.NArg() != 2 {
		return nil, optionError(fmt.Errorf("%s: %d arguments instead of 2", helperName, flags.NArg()), helperUsage)
	}
	translated := []string{"mount", "-o", helperOptions(*said, *sloppy)}
	if *fake {
		translated = append(translated, "--fake")
	}
	places := flags.Args()
	if places[0] == "none" {
		places = places[1:]
	}
	return slices.Concat(translated, []string{"--"}, places), nil
}

const helperUsage = "mount(8) calls it: mount.milkweed SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]."

// helperOptions leaves out what mount(8) adds to what the user wrote: rw, which
// stands there unless the user wrote ro; and for -s what is not known.
func helperOptions(said []string, sloppy bool) string {
	words := strings.Split(strings.Join(said, ","), ",")
	return strings.Join(slices.DeleteFunc(words, func(word string) bool {
		return word == "rw" || sloppy && new(options).add(word) != nil
	}), ",")
}
