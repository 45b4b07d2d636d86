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

// helperName is the name under which mount(8) calls the program for file systems of
// type milkweed, such as those in /etc/fstab.
const helperName = "mount.milkweed"

// ignoredOptions are options of mount(8), of systemd or of other file systems that
// have no effect on a mount of Milkweed. The mount is always read-only, nosuid and
// nodev.
var ignoredOptions = []string{
	"ro", "defaults", "suid", "nosuid", "dev", "nodev", "exec", "auto", "noauto", "fail", "nofail", "_netdev", "nonetdev",
	"user", "nouser", "users", "owner", "noowner", "group", "nogroup", "sync", "async", "dirsync", "silent", "loud",
	"atime", "noatime", "diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime",
	"lazytime", "nolazytime", "mand", "nomand", "iversion", "noiversion",
}

// ignoredPrefixes are prefixes of more such options.
var ignoredPrefixes = []string{"x-", "X-", "comment=", "uhelper=", "helper="}

// options is the parsed value of -o.
type options struct {
	config string        // the configuration file; "" if there is none
	values []optionValue // values of the configuration
	noExec bool          // whether files in the mount may not be executed

	defaultPermissions bool // for --fuse-fd: whether the mount has this option, by which the kernel checks the modes of files
}

// An optionValue is the value of an option that sets a key of the configuration.
type optionValue struct{ name, value string }

// parseOptions parses the value of -o, which is also that of a line of /etc/fstab.
func parseOptions(s string) (options, error) {
	var o options
	for word := range strings.SplitSeq(s, ",") {
		if err := o.add(word); err != nil {
			return options{}, err
		}
	}
	return o, nil
}

// optionKey returns the key of the configuration that an option sets. It reports
// false if the option sets none.
func optionKey(name string) (config.Key, bool) {
	for _, k := range config.Keys() {
		if k.Option == name && name != "" {
			return k, true
		}
	}
	return config.Key{}, false
}

// add parses one option, which is NAME or NAME=VALUE.
func (o *options) add(word string) error {
	name, value, hasValue := strings.Cut(word, "=")
	key, isKey := optionKey(name)
	switch {
	case word == "" || isIgnored(word):
		return nil
	case word == "noexec":
		o.noExec = true
		return nil
	case word == "default_permissions":
		o.defaultPermissions = true
		return nil
	case word == "remount":
		return optionError(errors.New(`option "remount": a mount cannot be changed by mount(8)`),
			"`milkweed config reload MOUNT` changes the log level, quotas and other limits. For the rest, unmount and mount again.")
	case word == "rw":
		return optionError(errors.New(`option "rw": the mount is read-only`), "Remove it, or write ro.")
	case isKey && key.IsBoolean() && !hasValue:
		value = "true"
	case (isKey || name == "config") && value == "":
		return optionError(fmt.Errorf("option %q has no value", name), fmt.Sprintf("Write %s=VALUE.", name))
	case name == "config":
		o.config = value
		return nil
	case !isKey:
		return unknownOption(name)
	}
	o.values = append(o.values, optionValue{name, value})
	return nil
}

// set overrides values of c.
func (o *options) set(c *config.Config) error {
	for _, v := range o.values {
		key, _ := optionKey(v.name)
		if err := c.Set(key.String(), v.value, "option "+v.name); err != nil {
			return err
		}
	}
	return nil
}

// isIgnored reports whether an option is accepted and has no effect.
func isIgnored(word string) bool {
	return slices.Contains(ignoredOptions, word) ||
		slices.ContainsFunc(ignoredPrefixes, func(p string) bool { return strings.HasPrefix(word, p) })
}

// ownOptions returns the names of the options of Milkweed, sorted.
func ownOptions() []string {
	names := []string{"config"}
	for _, k := range config.Keys() {
		if k.Option != "" {
			names = append(names, k.Option)
		}
	}
	slices.Sort(names)
	return names
}

func optionError(err error, remedy string) error {
	return &exit.Error{Code: exit.Usage, Err: err, Remedy: remedy}
}

func unknownOption(name string) error {
	known := slices.Concat(ownOptions(), ignoredOptions)
	near := slices.MinFunc(known, func(a, b string) int {
		return levenshtein.Distance(name, a, nil) - levenshtein.Distance(name, b, nil)
	})
	err := fmt.Errorf("unknown option %q", name)
	if levenshtein.Distance(name, near, nil) <= max(1, len(name)/3) {
		err = fmt.Errorf("%w: did you mean %q?", err, near)
	}
	return optionError(err, "The options of Milkweed are "+strings.Join(ownOptions(), ", ")+".")
}

// fromHelper translates the arguments that mount(8) passes to a helper,
//
//	mount.milkweed SOURCE MOUNTPOINT [-sfnv] [-N namespace] [-o options] [-t type]
//
// to the arguments of milkweed. The -f of mount(8) means to do everything except
// mounting. SOURCE is "none" if the configuration file sets the source.
func fromHelper(words []string) ([]string, error) {
	flags := pflag.NewFlagSet(helperName, pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	fake := flags.BoolP("fake", "f", false, "")
	sloppy := flags.BoolP("sloppy", "s", false, "")
	given := flags.StringArrayP("options", "o", nil, "")
	flags.BoolP("no-mtab", "n", false, "") // there is no mtab any more
	flags.BoolP("verbose", "v", false, "")
	flags.StringP("namespace", "N", "", "") // mount(8) has entered the namespace already
	flags.StringP("types", "t", "", "")
	if err := flags.Parse(words); err != nil {
		return nil, optionError(fmt.Errorf("%s: %w", helperName, err), helperUsage)
	}
	if flags.NArg() != 2 {
		return nil, optionError(fmt.Errorf("%s: %d arguments instead of 2", helperName, flags.NArg()), helperUsage)
	}
	translated := []string{"mount", "-o", helperOptions(*given, *sloppy)}
	if *fake {
		translated = append(translated, "--fake")
	}
	args := flags.Args()
	if args[0] == "none" {
		args = args[1:]
		// "mount -a" compares the source of a line with the table of mounts, which has the name of the dataset.
		translated = append(translated, "--unless-mounted")
	}
	return slices.Concat(translated, []string{"--"}, args), nil
}

const helperUsage = "mount(8) calls it as: mount.milkweed SOURCE MOUNTPOINT [-sfnv] [-o OPTIONS]."

// helperOptions joins the options of mount(8). It removes rw, which mount(8) adds
// unless the user wrote ro. With sloppy, the flag -s, it also removes unknown options.
func helperOptions(given []string, sloppy bool) string {
	words := strings.Split(strings.Join(given, ","), ",")
	return strings.Join(slices.DeleteFunc(words, func(word string) bool {
		return word == "rw" || sloppy && word != "remount" && new(options).add(word) != nil
	}), ",")
}
