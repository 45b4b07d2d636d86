package paths

import (
	"encoding/json"
	"reflect"
	"strings"
	"unicode/utf8"
)

// Marshal returns a struct as JSON, as json.Marshal does. A string in JSON cannot have the bytes of a name that
// is not UTF-8: it has U+FFFD in place of the invalid ones. For each such string field NAME of the struct, the
// object therefore also has NAME_bytes, which is all bytes in base64.
//
// A type that has names calls Marshal and Unmarshal in its methods MarshalJSON and UnmarshalJSON, with its value
// as one of a type without methods. A struct that is embedded in it has no such methods.
func Marshal(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	eachString(reflect.ValueOf(v), func(name string, field reflect.Value) {
		if s := field.String(); err == nil && !utf8.ValidString(s) {
			var more []byte
			more, err = json.Marshal(map[string][]byte{name + bytesSuffix: []byte(s)})
			text = append(append(text[:len(text)-1], ','), more[1:]...)
		}
	})
	return text, err
}

// Unmarshal is the inverse of Marshal. It stores the struct in the value to which v points.
func Unmarshal(p []byte, v any) error {
	if err := json.Unmarshal(p, v); err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	err := json.Unmarshal(p, &fields)
	eachString(reflect.ValueOf(v).Elem(), func(name string, field reflect.Value) {
		var s []byte
		if text, ok := fields[name+bytesSuffix]; ok && err == nil {
			if err = json.Unmarshal(text, &s); err == nil {
				field.SetString(string(s))
			}
		}
	})
	return err
}

const bytesSuffix = "_bytes"

// eachString calls f for the string fields of a struct, with their names in JSON.
func eachString(v reflect.Value, f func(name string, field reflect.Value)) {
	for i := range v.NumField() {
		t, field := v.Type().Field(i), v.Field(i)
		switch name, _, _ := strings.Cut(t.Tag.Get("json"), ","); {
		case t.Anonymous && field.Kind() == reflect.Struct:
			eachString(field, f)
		case name != "" && name != "-" && field.Kind() == reflect.String:
			f(name, field)
		}
	}
}
