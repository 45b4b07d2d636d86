package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/exit"
)

const fluidLong = `Fluid mounts the dataset of a ThinRuntime of Fluid. It is the command of the
FUSE container. It reads the file that Fluid writes for that container, and
then becomes the program milkweed, which mounts the dataset at the targetPath.

The file has one mount. Its mountPoint is the URL of a bucket, as in
s3://BUCKET/PREFIX, or local:// and a path in the container. Its path is absent
or "/": the dataset is the root of the volume. The options of the Dataset and
of the ThinRuntime are options of milkweed mount -o; those of the Dataset
override. Options that name files, addresses or tiers are refused: they belong
into the ThinRuntimeProfile, as FLAGS of milkweed mount.

Credentials are encryptOptions with the names of environment variables, such as
AWS_ACCESS_KEY_ID. Fluid replaces the value by the path of a file, which is
read. GOOGLE_APPLICATION_CREDENTIALS is the path itself.

The mount is read-only, and all users may read it. SIGTERM unmounts.

Changes of the file take effect when the container is restarted.`

// A fluidCommand is the command fluid with its flags.
type fluidCommand struct {
	config  string // the file that Fluid writes
	secrets string // the folder below which Fluid mounts secrets
	program string // milkweed
}

func newFluid() *cobra.Command {
	var f fluidCommand
	cmd := &cobra.Command{
		Use:   "fluid [flags] [-- FLAGS]",
		Short: "Mount the dataset of a ThinRuntime of Fluid",
		Long:  fluidLong,
		Example: `  milkweed-k8s fluid
  milkweed-k8s fluid -- --tier ram:/dev/shm/milkweed:64GiB`,
		Args: usage(func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() != 0 && len(args) > 0 {
				return fmt.Errorf("unexpected argument %q: flags of milkweed mount follow --", args[0])
			}
			return nil
		}),
		RunE: func(_ *cobra.Command, flags []string) error { return f.run(flags) },
	}
	cmd.Flags().StringVar(&f.config, "config", "/etc/fluid/config/config.json", "read `FILE`, which Fluid writes")
	cmd.Flags().StringVar(&f.secrets, "secrets", "/etc/fluid/secrets", "read secrets only below `DIR`")
	cmd.Flags().StringVar(&f.program, "milkweed", "/usr/bin/milkweed", "the `PROGRAM` milkweed")
	return cmd
}

// run replaces this process by milkweed. It returns only if that fails.
func (f *fluidCommand) run(flags []string) error {
	file, err := os.Open(f.config)
	if err != nil {
		return fluidError(err, "Fluid mounts the file into the container; --config names another.")
	}
	defer file.Close()
	m, err := parseFluid(file)
	if err != nil {
		return fluidError(fmt.Errorf("%s: %w", f.config, err), "`milkweed-k8s fluid --help` describes the Dataset.")
	}
	credentials, err := m.environment(f.secrets)
	if err != nil {
		return fluidError(fmt.Errorf("%s: %w", f.config, err), "Check the encryptOptions of the Dataset and the secret.")
	}
	if err := makeFluidTarget(m.target); err != nil {
		return &exit.Error{Code: exit.MountPoint, Err: err}
	}
	if err := syscall.Exec(f.program, m.arguments(flags), slices.Concat(os.Environ(), credentials)); err != nil {
		return &os.PathError{Op: "execute", Path: f.program, Err: err}
	}
	return nil
}

func fluidError(err error, remedy string) error {
	return &exit.Error{Code: exit.Usage, Err: err, Remedy: remedy}
}

// makeFluidTarget creates the mount point. A stale mount of an earlier container may be on it, so that
// it cannot be examined.
func makeFluidTarget(target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(target, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

// A fluidMount is what the configuration of Fluid asks for.
type fluidMount struct {
	source      string
	target      string
	options     map[string]string // of milkweed mount -o
	credentials map[string]string // by environment variable: the value, or a file that has it
}

// fluidConfig is the file that Fluid writes, as far as it is used here. Fields that other versions
// of Fluid add are ignored.
type fluidConfig struct {
	Mounts []struct {
		MountPoint string            `json:"mountPoint"`
		Path       string            `json:"path"`
		Options    map[string]string `json:"options"`
	} `json:"mounts"`
	TargetPath     string            `json:"targetPath"`
	RuntimeOptions map[string]string `json:"runtimeOptions"`
	AccessModes    []string          `json:"accessModes"`
}

// Limits of what is read. A ConfigMap and a Secret have at most 1 MiB.
const (
	maxFluidConfig = 1 << 20
	maxFluidSecret = 64 << 10
)

// parseFluid parses the file that Fluid writes, and checks all that can be checked without
// reading other files.
func parseFluid(r io.Reader) (*fluidMount, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFluidConfig+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFluidConfig {
		return nil, fmt.Errorf("the file has more than %d bytes", maxFluidConfig)
	}
	var c fluidConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	if len(c.Mounts) != 1 {
		return nil, fmt.Errorf("the Dataset has %d mounts; Milkweed serves exactly 1", len(c.Mounts))
	}
	given := c.Mounts[0]
	if given.Path != "" && given.Path != "/" {
		return nil, fmt.Errorf(`path %q: the dataset is the root of the volume; remove path, or write "/"`, given.Path)
	}
	for _, mode := range c.AccessModes {
		if !strings.HasPrefix(mode, "ReadOnly") {
			return nil, fmt.Errorf("accessModes has %q: the mount is read-only; write ReadOnlyMany", mode)
		}
	}
	if err := checkTarget(c.TargetPath); err != nil {
		return nil, fmt.Errorf("targetPath %w", err)
	}
	m := &fluidMount{target: c.TargetPath, options: make(map[string]string), credentials: make(map[string]string)}
	if m.source, err = fluidSource(given.MountPoint); err != nil {
		return nil, fmt.Errorf("mountPoint %w", err)
	}
	for _, options := range []map[string]string{c.RuntimeOptions, given.Options} {
		for _, name := range slices.Sorted(maps.Keys(options)) {
			if err := m.add(name, options[name]); err != nil {
				return nil, fmt.Errorf("option %w", err)
			}
		}
	}
	return m, nil
}

// checkTarget checks the path on which the dataset is to be mounted.
func checkTarget(path string) error {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/" || hasControl(path) {
		return fmt.Errorf("%q is not a clean absolute path below /", path)
	}
	return nil
}

// fluidSource returns the SOURCE of milkweed mount for a mountPoint of Fluid.
func fluidSource(mountPoint string) (string, error) {
	scheme, rest, ok := strings.Cut(mountPoint, "://")
	switch {
	case !ok:
		return "", fmt.Errorf("%q is not a URL", mountPoint)
	case hasControl(mountPoint):
		return "", fmt.Errorf("%q has a control character", mountPoint)
	case scheme == "s3" || scheme == "gs" || scheme == "azblob":
		return mountPoint, nil
	case scheme != "local":
		return "", fmt.Errorf("%q: the scheme is s3, gs, azblob or local", mountPoint)
	case !filepath.IsAbs(rest) || filepath.Clean(rest) != rest:
		return "", fmt.Errorf("%q: local:// is followed by a clean absolute path", mountPoint)
	}
	return rest, nil
}

// fluidOptions are the options that the author of a Dataset may set. The others name files,
// addresses or peers.
var fluidOptions = []string{
	"attr_timeout", "clock_skew", "consistency", "generation", "log_level", "mode", "noexec", "profile", "scrub_interval",
	"scrub_rate", "source_bandwidth", "source_operations", "window", "workers", "xattrs",
}

// googleFile is the variable whose value is the path of a file with credentials.
const googleFile = "GOOGLE_APPLICATION_CREDENTIALS"

// fluidCredentials are the environment variables that encryptOptions may set.
var fluidCredentials = []string{
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
	"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING",
	"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
	googleFile,
}

// fluidReserved is the prefix of options with which Fluid itself is configured.
const fluidReserved = "data.fluid.io/"

// add adds an option of the configuration.
func (m *fluidMount) add(name, value string) error {
	switch {
	case strings.HasPrefix(name, fluidReserved), name == "ro":
		return nil
	case slices.Contains(fluidCredentials, name):
		m.credentials[name] = value
		return nil
	case !slices.Contains(fluidOptions, name):
		return fmt.Errorf("%q is not one of %s; encryptOptions are %s", name,
			strings.Join(fluidOptions, ", "), strings.Join(fluidCredentials, ", "))
	case strings.Contains(value, ",") || hasControl(value):
		return fmt.Errorf("%s=%q: a value has no comma and no control character", name, value)
	}
	m.options[name] = value
	return nil
}

// hasControl reports whether s has a control character.
func hasControl(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// arguments returns the command line of milkweed, with the flags that the administrator gave.
func (m *fluidMount) arguments(flags []string) []string {
	args := []string{"milkweed", "mount", "--foreground", "--clear-stale", "--allow-other"}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(m.options)) {
		word := name
		if value := m.options[name]; value != "" {
			word += "=" + value
		}
		words = append(words, word)
	}
	if len(words) > 0 {
		args = append(args, "-o", strings.Join(words, ","))
	}
	return slices.Concat(args, flags, []string{"--", m.source, m.target})
}

// environment returns the variables with credentials, in the form NAME=VALUE. Files are read only
// below the folder secrets.
func (m *fluidMount) environment(secrets string) ([]string, error) {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(m.credentials)) {
		value := m.credentials[name]
		file, isFile := strings.CutPrefix(value, strings.TrimSuffix(secrets, "/")+"/")
		if isFile {
			content, err := readSecret(secrets, file)
			if err != nil {
				return nil, fmt.Errorf("option %s: %w", name, err)
			}
			if name == googleFile {
				err = checkGoogleCredentials(content)
			} else {
				value = content
			}
			if err != nil {
				return nil, fmt.Errorf("option %s: %w", name, err)
			}
		} else if name == googleFile {
			return nil, fmt.Errorf("option %s: the value is not a file below %s", name, secrets)
		}
		if name != googleFile && hasControl(value) {
			return nil, fmt.Errorf("option %s: the value has a control character", name)
		}
		env = append(env, name+"="+value)
	}
	return env, nil
}

// readSecret returns the content of a file below the folder secrets, without a newline at the end.
// Symbolic links are followed within the folder.
func readSecret(secrets, name string) (string, error) {
	root, err := os.OpenRoot(secrets)
	if err != nil {
		return "", err
	}
	defer root.Close()
	f, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFluidSecret+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxFluidSecret {
		return "", fmt.Errorf("%s has more than %d bytes", name, maxFluidSecret)
	}
	return string(bytes.TrimSuffix(data, []byte("\n"))), nil
}
