package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/milkweedfs/milkweed/drivers/peer/roster"
)

// Each type of value is a flag.Value. Set returns an error for invalid text and then
// leaves the value unchanged. String returns text that Set accepts.

type (
	pathValue         string
	optionalPathValue string
	snapshotValue     string
	nameValue         string
	generationValue   string
	manifestValue     string
	quotaValue        Quota
	shareValue        Quota // that may be 0
	bandwidthValue    int64
	operationsValue   int64
	modeValue         Mode
	boolValue         bool
	durationValue     time.Duration
	windowValue       time.Duration
	workersValue      int
	rosterValue       string
	nodeValue         string
	nodesValue        int
	listenValue       string
	addressValue      string
	levelValue        slog.Level
	formatValue       string
)

var errEmpty = errors.New("is empty")

// Set makes a relative path absolute, based on the current directory. The error for
// a URL does not contain it, because a URL may contain a secret.
func (v *pathValue) Set(s string) error {
	if s == "" {
		return errEmpty
	}
	if IsURL(s) {
		return errors.New("is a URL and not a path")
	}
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("%q is not a path", s)
	}
	abs, err := absolute(s)
	if err != nil {
		return err
	}
	*v = pathValue(abs)
	return nil
}

func (v *pathValue) String() string { return string(*v) }

func (v *optionalPathValue) Set(s string) error {
	if s == "" {
		*v = ""
		return nil
	}
	return (*pathValue)(v).Set(s)
}

func (v *optionalPathValue) String() string { return string(*v) }

// Set takes any other text for a path, such as "./off".
func (v *snapshotValue) Set(s string) error {
	switch s {
	case SnapshotInTier, NoSnapshot:
		*v = snapshotValue(s)
		return nil
	}
	return (*pathValue)(v).Set(s)
}

func (v *snapshotValue) String() string { return string(*v) }

const maxName = 64 // bytes of the name of a tier

var namePattern = regexp.MustCompile(fmt.Sprintf(`^[a-z0-9_-]{1,%d}$`, maxName))

func (v *nameValue) Set(s string) error {
	if !namePattern.MatchString(s) {
		return fmt.Errorf("%q is not a name", s)
	}
	*v = nameValue(s)
	return nil
}

func (v *nameValue) String() string { return string(*v) }

func (v *generationValue) Set(s string) error {
	if s == "." || s == ".." || strings.ContainsAny(s, "/\x00") {
		return fmt.Errorf("%q is not the name of a directory", s)
	}
	*v = generationValue(s)
	return nil
}

func (v *generationValue) String() string { return string(*v) }

// Set takes a path that begins with the prefix for one, as in "./dataset:a".
func (v *manifestValue) Set(s string) error {
	name, inDataset := strings.CutPrefix(s, ManifestInDataset)
	if !inDataset {
		return (*optionalPathValue)(v).Set(s)
	}
	if name == "." || !filepath.IsLocal(name) || filepath.Clean(name) != name {
		return fmt.Errorf("%q is not the name of a file in the dataset", name)
	}
	*v = manifestValue(s)
	return nil
}

func (v *manifestValue) String() string { return string(*v) }

func (v *quotaValue) Set(s string) error {
	q, err := ParseQuota(s)
	if err != nil {
		return err
	}
	*v = quotaValue(q)
	return nil
}

func (v *quotaValue) String() string { return Quota(*v).String() }

func (v *shareValue) Set(s string) error {
	if s == "0" || s == "0%" || s == "" {
		*v = shareValue{}
		return nil
	}
	return (*quotaValue)(v).Set(s)
}

func (v *shareValue) String() string { return Quota(*v).String() }

func (v *bandwidthValue) Set(s string) error {
	if s == "" {
		*v = 0
		return nil
	}
	n, err := parseSize(s)
	if err != nil {
		return err
	}
	*v = bandwidthValue(n)
	return nil
}

func (v *bandwidthValue) String() string {
	if *v == 0 {
		return ""
	}
	return formatSize(int64(*v))
}

func (v *operationsValue) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return fmt.Errorf("%q is not a number", s)
	}
	if n < 0 {
		return fmt.Errorf("%d is negative", n)
	}
	*v = operationsValue(n)
	return nil
}

func (v *operationsValue) String() string { return strconv.FormatInt(int64(*v), 10) }

func (v *modeValue) Set(s string) error {
	switch m := Mode(s); m {
	case Auto, Passthrough, Stateless, Cached:
		*v = modeValue(m)
		return nil
	}
	return fmt.Errorf("%q is not a mode", s)
}

func (v *modeValue) String() string { return string(*v) }

func (v *boolValue) Set(s string) error {
	switch s {
	case "true", "false":
		*v = s == "true"
		return nil
	}
	return fmt.Errorf("%q is neither true nor false", s)
}

func (v *boolValue) String() string { return strconv.FormatBool(bool(*v)) }

func (v *durationValue) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("%q is not a duration", s)
	}
	if d < 0 {
		return fmt.Errorf("%q is negative", s)
	}
	*v = durationValue(d)
	return nil
}

// String returns "1h" where time.Duration returns "1h0m0s".
func (v *durationValue) String() string {
	s := time.Duration(*v).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// Set refuses a window that is shorter than a second: the requests would serve nobody.
func (v *windowValue) Set(s string) error {
	var d durationValue
	if err := d.Set(s); err != nil {
		return err
	}
	if d > 0 && time.Duration(d) < time.Second {
		return fmt.Errorf("%q is shorter than a second", s)
	}
	*v = windowValue(d)
	return nil
}

func (v *windowValue) String() string { return (*durationValue)(v).String() }

const maxWorkers = 256

func (v *workersValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%q is not a number", s)
	}
	if n < 1 || n > maxWorkers {
		return fmt.Errorf("%d is not from 1 to %d", n, maxWorkers)
	}
	*v = workersValue(n)
	return nil
}

func (v *workersValue) String() string { return strconv.Itoa(int(*v)) }

// Set accepts any address. Without a host the address is on 127.0.0.1, because the
// metrics contain paths: to expose them to the network, the user writes 0.0.0.0.
func (v *addressValue) Set(s string) error {
	if s == "" {
		*v = ""
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not host:port", s)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port from 0 to 65535", s)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	*v = addressValue(net.JoinHostPort(host, port))
	return nil
}

func (v *addressValue) String() string { return string(*v) }

// These begin a roster that is not a list.
const (
	rosterFile = "file:"
	rosterDNS  = "dns:" // its addresses are awaited
)

// Set makes the path of a file absolute.
func (v *rosterValue) Set(s string) error {
	if file, ok := strings.CutPrefix(s, rosterFile); ok {
		var path pathValue
		if err := path.Set(file); err != nil {
			return err
		}
		s = rosterFile + string(path)
	}
	if s != "" {
		if err := roster.CheckSpec(s); err != nil {
			return err
		}
	}
	*v = rosterValue(s)
	return nil
}

func (v *rosterValue) String() string { return string(*v) }

// Set accepts any name that may be in a roster.
func (v *nodeValue) Set(s string) error {
	if strings.ContainsAny(s, ", \t\n*") {
		return fmt.Errorf("%q is not the name of a node", s)
	}
	*v = nodeValue(s)
	return nil
}

func (v *nodeValue) String() string { return string(*v) }

const maxNodes = roster.MaxNodes

func (v *nodesValue) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil {
		return fmt.Errorf("%q is not a number", s)
	}
	if n < 0 || n > maxNodes {
		return fmt.Errorf("%d is not from 0 to %d", n, maxNodes)
	}
	*v = nodesValue(n)
	return nil
}

func (v *nodesValue) String() string { return strconv.Itoa(int(*v)) }

// Set accepts an address without a host, which is on all addresses of the machine.
func (v *listenValue) Set(s string) error {
	if s == "" {
		*v = ""
		return nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not host:port", s)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%q has no port from 1 to 65535", s)
	}
	*v = listenValue(net.JoinHostPort(host, port))
	return nil
}

func (v *listenValue) String() string { return string(*v) }

func (v *levelValue) Set(s string) error {
	switch s {
	case "debug", "info", "warn", "error":
		return (*slog.Level)(v).UnmarshalText([]byte(s))
	}
	return fmt.Errorf("%q is not a level", s)
}

func (v *levelValue) String() string { return strings.ToLower(slog.Level(*v).String()) }

func (v *formatValue) Set(s string) error {
	switch s {
	case "text", "json":
		*v = formatValue(s)
		return nil
	}
	return fmt.Errorf("%q is not a format", s)
}

func (v *formatValue) String() string { return string(*v) }

var variablePattern = regexp.MustCompile(`\$\{[^}]*\}?`)

// expand replaces each ${NAME} in s by the environment variable NAME. A variable
// that is unset or empty is an error: "${SLURM_TMPDIR}/milkweed" must not become
// "/milkweed".
func expand(s string) (string, error) {
	var err error
	s = variablePattern.ReplaceAllStringFunc(s, func(ref string) string {
		name, closed := strings.CutSuffix(ref[2:], "}")
		value := os.Getenv(name)
		switch {
		case err != nil:
		case !closed:
			err = fmt.Errorf(`%q has no "}"`, ref)
		case value == "":
			err = fmt.Errorf("the environment variable %q is not set, or empty", name)
		}
		return value
	})
	return s, err
}
