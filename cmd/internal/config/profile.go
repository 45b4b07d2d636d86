package config

import (
	"fmt"
	"slices"
	"strings"
)

// A Profile is a named set of values that replace defaults. Whatever the user sets wins over it.
type Profile struct {
	Name   string         `json:"name"`
	For    string         `json:"for"` // the datasets or machines that it suits, a sentence
	Values []ProfileValue `json:"values"`
}

// A ProfileValue is a value that a profile sets.
type ProfileValue struct {
	Key    string `json:"key"` // as Set takes it
	Value  string `json:"value"`
	Reason string `json:"reason"` // sentences in Markdown, by a measurement or by the code
}

// NoProfile is the value of the key profile without a profile.
const NoProfile = "none"

// A profile has only keys whose default is wrong for its case.
var profiles = []Profile{
	{
		Name: "imagenet-folder",
		For:  "A directory of many small files that does not change, such as ImageNet as JPEG files, read in several epochs.",
		Values: []ProfileValue{
			{
				Key: "mount.mode", Value: string(Stateless),
				Reason: "Opening, reading and closing a placed file of 110 KB takes 24 µs, and 97 µs in `passthrough`. " +
					"`auto` decides by the mean size of 64 files, which a few archives beside the images raise.",
			},
			{
				Key: "mount.attr_timeout", Value: "24h",
				Reason: "After this time, each name in use costs a request to the source and a FUSE round trip again. " +
					"If an epoch takes longer than the default, that is each name in each epoch.",
			},
		},
	},
	{
		Name: "tfrecord",
		For:  "Large files that are read from beginning to end, such as TFRecord files or the archives of WebDataset.",
		Values: []ProfileValue{
			{
				Key: "mount.mode", Value: string(Passthrough),
				Reason: "Without cached pages, `stateless` takes 3.1 times as long for files of 16 MiB; with them, as long. " +
					"`auto` decides by the mean size of 64 files, which small index files lower. " +
					"Without CAP_SYS_ADMIN or Linux 6.9 the mode is `cached`.",
			},
		},
	},
	{
		Name: "object-store",
		For:  "A bucket whose objects do not change while jobs read them.",
		Values: []ProfileValue{
			{
				Key: "mount.attr_timeout", Value: "24h",
				Reason: "After this time, directories in use are listed again. A million keys are 1,000 requests, which took 38 s.",
			},
			{
				Key: "mount.consistency", Value: "24h",
				Reason: "Names are saved with the copies, which the default for a bucket does not do: the next mount listed " +
					"a million keys in 6 s, without a request for them. A window that is not shorter than `mount.attr_timeout` costs no listings.",
			},
		},
	},
	{
		Name: "hpc",
		For:  "A parallel file system that many nodes share, with a dataset that does not change while jobs read it.",
		Values: []ProfileValue{
			{
				Key: "mount.attr_timeout", Value: "24h",
				Reason: "After this time, each name in use costs each node a request to the metadata servers again.",
			},
			{
				Key: "mount.consistency", Value: "24h",
				Reason: "A window that is shorter than `mount.attr_timeout` costs up to 50 requests a second on each node; " +
					"32 to 42 were measured with 21,001 names in use. Names are still saved for the next mount. " +
					"A file that was rewritten in place is seen after a day, or by `milkweed refresh`.",
			},
		},
	},
}

// Profiles returns all profiles.
func Profiles() []Profile { return slices.Clone(profiles) }

// FindProfile returns the profile with a name.
func FindProfile(name string) (Profile, error) {
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i >= 0 {
		return profiles[i], nil
	}
	err := fmt.Errorf("%q is not a profile", name)
	if near := nearest(name, profileNames()); near != "" {
		err = fmt.Errorf("%w: did you mean %q?", err, near)
	}
	return Profile{}, err
}

// ProfilesRemedy is the remedy for the error of FindProfile.
func ProfilesRemedy() string {
	return "The profiles are " + list(profileNames()) + "; " + NoProfile + " sets nothing."
}

func profileNames() (names []string) {
	for _, p := range profiles {
		names = append(names, p.Name)
	}
	return names
}

// profileBounds returns the names for Key.Bounds.
func profileBounds() string {
	return "`" + NoProfile + "`, `" + strings.Join(profileNames(), "`, `") + "`"
}

func (p Profile) sets(key string) bool { _, ok := p.value(key); return ok }

// value returns the value of a key in the profile. It reports false if the profile does not set it.
func (p Profile) value(key string) (string, bool) {
	i := slices.IndexFunc(p.Values, func(v ProfileValue) bool { return v.Key == key })
	if i < 0 {
		return "", false
	}
	return p.Values[i].Value, true
}

// profile returns the profile of c. It is the zero value, which sets nothing, if there is none.
func (c *Config) profile() Profile {
	if i := slices.Index(profileNames(), c.Profile); i >= 0 {
		return profiles[i]
	}
	return Profile{}
}

// variableDefaults are the keys of which the profile or another value determines the default.
var variableDefaults = func() []string {
	all := []string{"mount.consistency"}
	for _, p := range profiles {
		for _, v := range p.Values {
			all = append(all, v.Key)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}()

// updateDefaults sets the values that the user has not set and that depend on other values.
func (c *Config) updateDefaults() {
	d := Default()
	if c.Source.URL != "" {
		d.Mount.Consistency = consistencyForBucket
	}
	p := c.profile()
	for _, key := range variableDefaults {
		if _, isSet := c.origins[key]; isSet {
			continue
		}
		_, k, _, _ := c.lookup(key)
		value, ok := p.value(key)
		if !ok {
			value = k.field(&d, nil).String()
		}
		if err := k.field(c, nil).Set(value); err != nil {
			panic(fmt.Errorf("profile %s: %s: %w", p.Name, key, err)) // a test sets all of them
		}
	}
}

type profileValue string

func (v *profileValue) Set(s string) error {
	if s != NoProfile {
		if _, err := FindProfile(s); err != nil {
			return err
		}
	}
	*v = profileValue(s)
	return nil
}

func (v *profileValue) String() string { return string(*v) }
