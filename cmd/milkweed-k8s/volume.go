package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// The keys of the attributes of a volume: volumeAttributes of an inline volume and of a persistent one.
const (
	sourceKey        = "source"
	optionsKey       = "options"
	configurationKey = "configuration"
)

// kubeletPrefix begins the keys that kubelet adds. ephemeralKey is that of an inline volume.
const (
	kubeletPrefix = "csi.storage.k8s.io/"
	ephemeralKey  = kubeletPrefix + "ephemeral"
)

// allowedOptions are the options of a mount that a volume may have. The others name files,
// addresses or secrets of the mounter, which are not the business of the author of a pod.
var allowedOptions = []string{
	"attr_timeout", "clock_skew", "consistency", "generation", "log_level", "mode", "noexec", "profile", "ro",
	"scrub_interval", "scrub_rate", "source_bandwidth", "source_operations", "window", "workers", "xattrs",
}

// allowedSecrets are the keys of a secret, which become environment variables of the daemon. None of
// them names a file: a file of the AWS tools can name a command, which the daemon would run.
var allowedSecrets = []string{
	"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
	"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING",
	"AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET",
	googleCredentials,
}

// googleCredentials is the key of a secret with the content of the file of a service account.
const googleCredentials = "GOOGLE_CREDENTIALS"

// maxVolume is the size of all values of a volume. A request to the mounter is one packet.
const maxVolume = 64 << 10

// A volume is what a pod asks for. Volumes with the same Key have the same daemon.
type volume struct {
	Source        string            `json:"source"`                  // a directory or URL
	Options       []string          `json:"options,omitempty"`       // of milkweed mount -o, sorted
	Configuration string            `json:"configuration,omitempty"` // TOML
	Secrets       map[string]string `json:"secrets,omitempty"`       // environment variables
}

// parseVolume parses the attributes and the secrets of a volume. extraSecrets are keys of secrets that
// are allowed beside allowedSecrets. An error names what is wrong, and no value of a secret.
func parseVolume(attributes, secrets map[string]string, extraSecrets []string) (volume, error) {
	v := volume{Source: attributes[sourceKey], Configuration: attributes[configurationKey]}
	size := 0
	for _, key := range slices.Sorted(maps.Keys(attributes)) {
		switch {
		case key == sourceKey, key == optionsKey, key == configurationKey:
			size += len(attributes[key])
		case strings.HasPrefix(key, kubeletPrefix):
		default:
			return volume{}, fmt.Errorf("unknown attribute %q: the attributes are %s, %s and %s", key, sourceKey, optionsKey, configurationKey)
		}
	}
	switch {
	case v.Source == "":
		return volume{}, fmt.Errorf("attribute %q is missing: the directory or the URL of the dataset", sourceKey)
	case !printable(v.Source):
		return volume{}, fmt.Errorf("attribute %q has a control character", sourceKey)
	case hasCredentials(v.Source):
		return volume{}, fmt.Errorf("attribute %q has credentials: they belong into the secret of nodePublishSecretRef", sourceKey)
	case v.Configuration != "" && attributes[ephemeralKey] == "true":
		return volume{}, fmt.Errorf("attribute %q is for persistent volumes: the author of a pod may not choose files and addresses of the mounter", configurationKey)
	case !utf8.ValidString(v.Configuration) || strings.Contains(v.Configuration, "\x00"):
		return volume{}, fmt.Errorf("attribute %q is not a text", configurationKey)
	}
	var err error
	if v.Options, err = parseOptions(attributes[optionsKey]); err != nil {
		return volume{}, err
	}
	for _, key := range slices.Sorted(maps.Keys(secrets)) {
		size += len(secrets[key])
		if !slices.Contains(allowedSecrets, key) && !slices.Contains(extraSecrets, key) {
			known := slices.Concat(allowedSecrets, extraSecrets)
			return volume{}, fmt.Errorf("key %q of the secret is not allowed: the keys are %s", key, strings.Join(known, ", "))
		}
		if strings.Contains(secrets[key], "\x00") {
			return volume{}, fmt.Errorf("key %q of the secret is not a text", key)
		}
	}
	if err := checkGoogleCredentials(secrets[googleCredentials]); err != nil {
		return volume{}, err
	}
	if size > maxVolume {
		return volume{}, fmt.Errorf("the attributes and the secret have %d bytes, more than %d", size, maxVolume)
	}
	if len(secrets) > 0 {
		v.Secrets = maps.Clone(secrets)
	}
	return v, nil
}

// parseOptions parses options as of milkweed mount -o, and returns them sorted by their names. Their
// values are examined by milkweed.
func parseOptions(text string) ([]string, error) {
	if !printable(text) {
		return nil, fmt.Errorf("attribute %q has a control character", optionsKey)
	}
	var options []string
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		name, _, _ := strings.Cut(word, "=")
		if !slices.Contains(allowedOptions, name) {
			return nil, fmt.Errorf("option %q is not allowed in a volume: the options are %s", name, strings.Join(allowedOptions, ", "))
		}
		options = append(options, word)
	}
	// The last one of a name wins, so that their order matters.
	slices.SortStableFunc(options, func(a, b string) int {
		a, _, _ = strings.Cut(a, "=")
		b, _, _ = strings.Cut(b, "=")
		return strings.Compare(a, b)
	})
	return options, nil
}

// checkGoogleCredentials accepts the kinds of credentials that name no other file or command.
func checkGoogleCredentials(text string) error {
	if text == "" {
		return nil
	}
	var credentials struct{ Type string }
	if err := json.Unmarshal([]byte(text), &credentials); err != nil {
		return fmt.Errorf("key %q of the secret is not JSON", googleCredentials)
	}
	if credentials.Type != "service_account" && credentials.Type != "authorized_user" {
		return fmt.Errorf("key %q of the secret is neither of a service account nor of a user", googleCredentials)
	}
	return nil
}

// hasCredentials reports whether a source is a URL with a user or a password, which would be in logs and
// in the table of mounts.
func hasCredentials(source string) bool {
	_, rest, isURL := strings.Cut(source, "://")
	authority, _, _ := strings.Cut(rest, "/")
	authority, _, _ = strings.Cut(authority, "?")
	return isURL && strings.Contains(authority, "@")
}

// name returns the source without the options of a URL, for logs.
func (v volume) name() string {
	if !strings.Contains(v.Source, "://") {
		return v.Source
	}
	name, _, _ := strings.Cut(v.Source, "?")
	return name
}

// printable reports whether s is UTF-8 without control characters.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// key identifies the volumes that are the same.
func (v volume) key() string {
	data, err := json.Marshal(v) // maps are sorted
	if err != nil {
		panic(err) // strings have no errors
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// noExec reports whether programs on the mount may not be executed.
func (v volume) noExec() bool { return slices.Contains(v.Options, "noexec") }
